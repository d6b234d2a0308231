"""Dependencies of each output: forward passes that differ in one place, and gradients.

``meaning`` names the role of each tensor in a batch, ``forwards`` runs the model, ``rows`` makes
batches that differ in one place, ``changes`` compares outputs, ``dependencies`` takes gradients,
``first_call`` finds the operation that lets a leak through. ``axes/`` has a file for each axis,
with ``judge(subject) -> AxisResult``.
"""
