"""Slopes over the width against NumPy's least squares, and the verdicts on them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gradscope.comparison.scaling import judged, slope_of

WIDTHS = (64, 128, 256, 512)
EPSILON = {"float32": 2.0**-23, "float64": 2.0**-52}


def power(exponent: float, factors=(1.0, 1.1, 0.9), scale: float = 1.0):
    """Values that are a power of the width, for each width and seed."""
    return tuple(tuple(scale * f * width**exponent for f in factors) for width in WIDTHS)


def layer(initial, change, *, output: bool = False, epsilon: float = EPSILON["float64"]):
    zero = tuple((0.0,) * len(own) for own in initial)
    activations, changes = (initial, initial), (zero, change)
    return judged("fc", "Linear", 0, WIDTHS, activations, changes, output=output, epsilon=epsilon)


def test_a_slope_is_that_of_least_squares_and_its_error_that_of_the_mean_over_seeds():
    values = np.random.default_rng(0).lognormal(size=(4, 5))
    found = slope_of(WIDTHS, values.tolist())
    slopes = np.polyfit(np.log(WIDTHS), np.log(values), 1)[0]
    assert found.seeds == pytest.approx(slopes, rel=1e-12)
    assert found.value == pytest.approx(slopes.mean(), rel=1e-12)
    assert found.error == pytest.approx(slopes.std(ddof=1) / math.sqrt(5), rel=1e-12)
    assert found.high - found.value == pytest.approx(2.776 * found.error, rel=1e-12)
    assert found.value - found.low == pytest.approx(2.776 * found.error, rel=1e-12)


def test_no_slope_of_zero_or_of_what_is_not_finite():
    assert slope_of(WIDTHS, [[1, 0.0], [1, 1], [1, 1], [1, 1]]) is None
    assert slope_of(WIDTHS, [[1, None], [1, 1], [1, 1], [1, 1]]) is None


ONE = power(0)
UNEVEN = tuple((1.0, (width / 64) ** 0.6) for width in WIDTHS)
VERDICTS = {
    "stable": (ONE, power(0.1), {}, ("stable", "", None)),
    "grows": (ONE, power(0.5), {}, ("grows", "change", "error")),
    "vanishes": (ONE, power(-0.5), {}, ("vanishes", "change", "warning")),
    "grows at first": (power(0.5), ONE, {}, ("grows", "initial", "error")),
    "vanishes at first": (power(-0.5), ONE, {}, ("vanishes", "initial", "warning")),
    "an output may vanish at first": (power(-0.5), ONE, {"output": True}, ("stable", "", None)),
    "it may be zero": (power(0, scale=0.0), ONE, {"output": True}, ("stable", "", None)),
    "it may not grow": (power(0.5), ONE, {"output": True}, ("grows", "initial", "error")),
    "its change may not vanish": (
        *(ONE, power(-1), {"output": True}),
        ("vanishes", "change", "warning"),
    ),
    "two seeds that disagree": (ONE, UNEVEN, {}, ("undetermined", "change", "info")),
    "nothing changed": (ONE, power(0, scale=0.0), {}, ("unchanged", "change", "info")),
    "rounding error": (
        *(ONE, power(0, scale=1e-7), {"epsilon": EPSILON["float32"]}),
        ("undetermined", "change", "info"),
    ),
    "the same in float64": (ONE, power(0, scale=1e-7), {}, ("stable", "", None)),
    "not finite": (((1.0, None), *ONE[1:]), ONE, {}, ("non-finite", "change", "error")),
}


@pytest.mark.parametrize(("initial", "change", "more", "expected"), VERDICTS.values(), ids=VERDICTS)
def test_the_verdict(initial, change, more, expected):
    if len(initial[0]) != len(change[0]):  # as many seeds everywhere
        initial, change = (tuple(own[:2] for own in values) for values in (initial, change))
    found = layer(initial, change, **more)
    assert (found.verdict, found.quantity, found.severity) == expected
