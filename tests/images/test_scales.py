"""Colour maps with even steps, and scales that one hot pixel, NaN or a constant does not break."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gradscope.images.colour_scales import COLORMAPS, STEPS, colored, oklab, scale_of, table


def steps(colors):
    """Distances in OKLab over eight entries, so that rounding to 8 bits is small against them."""
    lab = oklab(colors)
    return np.linalg.norm(lab[8:] - lab[:-8], axis=1)


def arms(signed):
    colors, middle = table(signed), STEPS // 2
    return [colors[: middle + 1], colors[middle:]] if signed else [colors]


@pytest.mark.parametrize("signed", [False, True])
def test_equal_values_apart_are_equal_colours_apart(signed):
    for arm in arms(signed):
        apart = steps(arm)
        assert apart.min() > 0.85 * apart.mean()
        assert apart.max() < 1.25 * apart.mean()


@pytest.mark.parametrize("name", COLORMAPS)
def test_every_colour_map_is_even_and_rises_in_lightness(name):
    apart = steps(table(False, name))
    assert apart.min() > 0.85 * apart.mean()
    assert apart.max() < 1.25 * apart.mean()
    assert (np.diff(oklab(table(False, name)[::4])[:, 0]) > 0).all()
    assert (table(True, name) == table(True)).all()


def test_the_check_of_steps_refuses_a_rainbow():
    rainbow = np.array([[255 - i, 255 - abs(2 * i - 255), i] for i in range(255)], dtype=np.uint8)
    apart = steps(rainbow)
    assert apart.min() < 0.85 * apart.mean()


def test_lightness_alone_tells_the_order():
    rising, below, above = *arms(False), *arms(True)
    assert (np.diff(oklab(rising)[:, 0]) > 0).all()
    assert (np.diff(oklab(below)[:, 0]) > 0).all()
    assert (np.diff(oklab(above)[:, 0]) < 0).all()


def seen_by(matrix, colors):
    """Return colours as an eye without one cone sees them (Viénot et al. 1999), in OKLab."""
    linear = ((colors / 255 + 0.055) / 1.055) ** 2.4
    kept = (linear @ np.array(matrix).T).clip(0, 1)
    return oklab(np.rint(255 * (1.055 * kept ** (1 / 2.4) - 0.055)).clip(0, 255))


PROTAN = [[0.11238, 0.88762, 0.0], [0.11238, 0.88762, 0.0], [0.00401, -0.00401, 1.0]]
DEUTAN = [[0.29275, 0.70725, 0.0], [0.29275, 0.70725, 0.0], [-0.02234, 0.02234, 1.0]]


@pytest.mark.parametrize("matrix", [PROTAN, DEUTAN])
def test_the_colour_blind_tell_for_from_against(matrix):
    colors = table(True)
    lab = seen_by(matrix, colors)
    apart = np.linalg.norm(lab - lab[::-1], axis=1)
    assert apart[: STEPS // 4].min() > 0.1


def test_the_colour_blind_check_refuses_red_and_green():
    pair = np.array([[170, 60, 60], [115, 105, 60]], dtype=np.uint8)
    red, green = seen_by(DEUTAN, pair)
    assert np.linalg.norm(red - green) < 0.1


def test_the_middle_of_the_signed_map_is_grey_and_light():
    red, green, blue = table(True)[STEPS // 2].tolist()
    assert red == green == blue > 240


def test_colours_beyond_the_ends_are_those_of_the_ends():
    shares = np.array([-1, 0, 1, 2, math.inf, -math.inf, math.nan], dtype=np.float32)
    low, high = table(False)[0].tolist(), table(False)[-1].tolist()
    assert colored(shares, False).tolist() == [low, low, high, high, high, low, low]


def heat(*values):
    return np.array([values], dtype=np.float32)


def test_an_unsigned_scale_goes_from_zero():
    scale = scale_of(heat(1, 2, 3, 4), signed=False)
    assert scale.low == 0
    assert not scale.signed
    assert scale.shares(heat(0.0))[0, 0] == 0


def test_a_signed_scale_has_zero_in_its_middle():
    scale = scale_of(heat(-1, 0, 2, 5), signed=True)
    assert scale.low == -scale.high
    assert scale.shares(heat(0.0))[0, 0] == 0.5


def test_one_hot_pixel_does_not_blank_the_rest():
    values = np.linspace(0, 1, 1000, dtype=np.float32).reshape(20, 50)
    values[0, 0] = 1e6
    scale = scale_of(values, signed=False)
    assert scale.high == pytest.approx(0.996, abs=1e-3)
    assert scale.labels == ("0", ">0.9960")
    assert scale.remarks == (
        "colours end at the 99.5th percentile; the values go from 0.001001 to 1.000e+06",
    )


@pytest.mark.parametrize("signed", [False, True])
def test_a_map_of_few_values_ends_at_its_largest(signed):
    values = np.zeros((50, 50), dtype=np.float32)
    values[3, 4] = 2
    scale = scale_of(values, signed=signed)
    assert scale.high == 2
    assert scale.shares(values).max() == 1


def test_values_on_one_side_far_from_zero_have_a_scale_of_their_own():
    values = np.linspace(0.8, 0.9, 400, dtype=np.float32).reshape(20, 20)
    for signed, data in ((True, values), (True, -values), (False, values)):
        scale = scale_of(data, signed=signed)
        assert not scale.signed
        assert scale.high - scale.low == pytest.approx(0.1, rel=0.02)
        assert "the scale does not begin at 0" in scale.remarks[0]


BLANK = {
    "zero": (np.zeros((4, 4)), "blank map: every value is 0"),
    "a constant": (np.full((4, 4), 0.25), "constant map: every value is 0.2500"),
    "a rounded constant": (0.25 + np.eye(4) * 1e-8, "constant map: every value is 0.2500"),
    "all NaN": (np.full((4, 4), np.nan), "blank map: no value is finite"),
    "nothing": (np.zeros((0, 0)), "empty map: it has no values"),
}


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize(("values", "said"), BLANK.values(), ids=BLANK)
def test_a_blank_map_is_said(values, said, signed):
    assert scale_of(values, signed=signed).blank == said


def test_a_map_that_is_not_blank_is_not_said_to_be():
    assert scale_of(heat(0, 1e-30), signed=False).blank == ""


def test_nan_is_left_out_and_counted():
    scale = scale_of(heat(1, math.nan, math.inf, 3), signed=False)
    assert scale.high == pytest.approx(3, rel=0.01)
    assert scale.remarks[0] == "2 of 4 values NaN or Inf: hatched"


def test_the_largest_numbers_have_a_scale():
    scale = scale_of(heat(-3e38, 0, 3e38), signed=True)
    assert np.allclose(scale.shares(heat(-3e38, 0, 3e38)), [[0, 0.5, 1]], atol=0.01)
