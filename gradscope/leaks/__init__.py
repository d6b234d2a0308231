"""Finds dependencies of each output, by forward passes whose inputs differ in one place, and by
gradients.

``meaning`` finds the role of each tensor in a batch, ``forwards`` runs the model, ``rows`` makes
batches that differ in one place, ``changes`` compares outputs, ``dependencies`` takes gradients,
and ``first_call`` finds the operation that leaks. ``axes/`` has a file for each axis, with
``judge(subject) -> AxisResult``.
"""
