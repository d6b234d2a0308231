"""Runs steps of the user's model. ``step`` has the only loop over steps, and is the only user of
``state``, which restores everything; an observer records the step.

``observe`` records activations and gradients, ``gradients`` the parameters' gradients, ``trace``
the autograd graph. ``rerun`` repeats a step of a run, and proves that observing changed nothing.
"""
