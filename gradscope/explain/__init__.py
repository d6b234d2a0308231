"""Explains problems in the user's terms: one room per question.

- ``missing``: the cause of a missing gradient (a second forward that follows the parameter's data);
- ``zero``: the cause of an exactly zero gradient (a second backward, traced edge by edge);
- ``non_finite``: the origin of a NaN or Inf (a second step, operator by operator);
- ``errors``: the meaning of an exception, with a file for each kind in ``errors/kinds``;
- ``units``: dead and saturated units;
- ``precision``: the loss of values in narrower dtypes;
- ``shared``: frames and the user's code, operations by all their names, module calls, the tracers.

A question imports ``shared``, and no other question; only ``errors`` may import ``missing``. A new
operation of PyTorch is an entry in ``shared/operations.py``.
"""
