"""Finds the origin of a NaN or Inf in a training step, within the step that produced it.

``detector.py`` sees each call and each backward. ``recorded_calls.py`` saves what a replay of a
call needs, ``side_effects.py`` learns which state a forward of the model changes, and
``replayed_calls.py`` runs the call again. The operations between the calls and the loss cannot be
replayed: ``loss_operations.py`` reads them off the loss graph while it exists, and saves what their
backward may need. ``first_module.py`` reports what is known when no origin was found.
"""
