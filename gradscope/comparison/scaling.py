"""Fits the slopes of log RMS over log width, and judges them by the criteria of µP.

In a tensor program, sizes are powers of the width with exponents that are multiples of ½ (Yang and
Hu, arXiv:2011.14522). µP asks that the coordinates of each activation, and their change in
training, are of size Θ(1), and the output at most O(1) (Yang et al., arXiv:2203.03466, appendix J).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from itertools import chain

from gradscope.records.coord_check import (
    CHANGE,
    GROWS,
    INITIAL,
    NON_FINITE,
    STABLE,
    UNCHANGED,
    UNDETERMINED,
    VANISHES,
    VERDICTS,
    LayerScaling,
    Series,
    Slope,
)

#: Half of the distance between the exponents 0 and ½.
THRESHOLD = 0.25
#: A change of fewer last bits than this, as a share of the activation, may be rounding error.
_BITS = 10
#: The 97.5 % quantile of Student's t for 1, 2, … degrees of freedom; of more the last.
_T = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160),
    *(2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
)

#: Values for each width and seed.
_Values = Sequence[Sequence[float | None]]


def slope_of(widths: Sequence[float], values: _Values) -> Slope | None:
    """Fit the slope of log value over log width.

    Args:
        widths: two or more.
        values: for each width, the values of two or more seeds.

    Returns:
        The slope; None if a value is zero or not finite.
    """
    x = [math.log(width) for width in widths]
    seeds = []
    for own in zip(*values, strict=True):
        y = [math.log(value) for value in own if value]
        if len(y) < len(x):
            return None
        seeds.append(statistics.linear_regression(x, y).slope)
    value = statistics.fmean(seeds)
    error = statistics.stdev(seeds) / math.sqrt(len(seeds))
    half = _T[min(len(seeds) - 1, len(_T)) - 1] * error
    return Slope(value, error, value - half, value + half, tuple(seeds))


def judged(
    name: str,
    type: str,
    call: int,
    widths: Sequence[float],
    activations: Series,
    changes: Series,
    *,
    output: bool,
    epsilon: float,
) -> LayerScaling:
    """Return the slopes of a layer, and the verdict.

    Args:
        name, type, call: identify the layer's call.
        widths: the widths of the model.
        activations, changes: root mean squares for each step, width and seed.
        output: True for the model's output, which may vanish at initialisation.
        epsilon: the distance from 1 to the next number of the dtype.
    """
    initial = slope_of(widths, activations[0])
    change = None
    if not _rounded(changes[-1], activations[-1], epsilon):
        change = slope_of(widths, changes[-1])
    least = -math.inf if output else -THRESHOLD
    found = [(_verdict(change, changes[-1]), CHANGE)]
    if not _all_zero(activations[0]):  # as of a last layer whose weights begin at zero
        found.insert(0, (_verdict(initial, activations[0], least=least), INITIAL))
    if any(value is None for step in activations for own in step for value in own):
        found.append((NON_FINITE, CHANGE))
    order = list(VERDICTS)
    verdict, quantity = min(found, key=lambda one: order.index(one[0]))
    return LayerScaling(
        name,
        type,
        verdict,
        "" if verdict == STABLE else quantity,
        call,
        output,
        VERDICTS[verdict],
        initial,
        slope_of(widths, activations[-1]),
        change,
        activations,
        changes,
    )


def _verdict(slope: Slope | None, values: _Values, *, least: float = -THRESHOLD) -> str:
    if slope is None:
        return UNCHANGED if _all_zero(values) else UNDETERMINED
    if slope.low > THRESHOLD:
        return GROWS
    if slope.high < least:
        return VANISHES
    return STABLE if least < slope.low and slope.high < THRESHOLD else UNDETERMINED


def _all_zero(values: _Values) -> bool:
    return all(value == 0 for own in values for value in own)


def _rounded(changes: _Values, activations: _Values, epsilon: float) -> bool:
    """Return True if a change is so small that it may be rounding error."""
    pairs = zip(chain.from_iterable(changes), chain.from_iterable(activations), strict=True)
    return any(change and value and change < _BITS * epsilon * value for change, value in pairs)
