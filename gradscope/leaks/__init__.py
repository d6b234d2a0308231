"""Finds dependencies of each output, by forward passes whose inputs differ in one place, and by
gradients.

``meaning`` finds the role of each tensor in a batch. ``forwards`` makes batches that differ in one
place and runs the model on them, ``changes`` compares the outputs. ``subject`` takes gradients,
``first_call`` finds the operation that leaks. ``axes/`` has a file for each axis, with
``judge(subject) -> AxisResult``.
"""
