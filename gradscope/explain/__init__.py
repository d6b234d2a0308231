"""Why something went wrong, in the user's terms: a room for each question.

- ``missing``: why a parameter has no gradient (a second forward that follows its data);
- ``zero``: why a gradient is exactly zero (a second backward, traced edge by edge);
- ``non_finite``: the origin of a NaN or Inf (a second step, operator by operator);
- ``errors``: what an exception means, with a file for each kind in ``errors/kinds``;
- ``units``: which units are dead or saturated;
- ``precision``: what narrower dtypes would lose;
- ``shared``: frames and the user's code, operations by all their names, module calls, the tracers.

The first four answer by ``explain.py``, ``units`` by ``activity.py``, ``precision`` by
``forecast.py``. A question imports ``shared`` and nothing of another; ``errors`` may ask
``missing``. An operation that PyTorch has anew is entered in ``shared/operations.py``.
"""
