"""Panels: what a point stands for, where it lies on the paper, and what odd numbers do."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree as ET

import pytest

from gradscope.charts import panels
from gradscope.charts.panels import Curve, Panel, Point, Stretch, point, thinned
from gradscope.charts.scales import Scale

POINTS = {
    "one value": ([2.0], Point(1, 2.0, 2.0, 2.0)),
    "several": ([3.0, 1.0, 2.0], Point(1, 2.0, 1.0, 3.0)),
    "a zero among others": ([0.0, 4.0], Point(1, 4.0, 4.0, 4.0, "zero")),
    "zero": ([0.0], Point(1, None, mark="zero")),
    "nothing": ([None], Point(1, None, mark="missing")),
    "NaN": ([math.nan], Point(1, None, mark="not finite")),
    "NaN among others": ([math.nan, 1.0], Point(1, 1.0, 1.0, 1.0, "not finite")),
}


@pytest.mark.parametrize(("values", "expected"), POINTS.values(), ids=POINTS)
def test_what_a_point_stands_for(values, expected):
    assert point(1, values) == expected


def test_thinning_keeps_ends_and_marks():
    points = [point(i, [1.0 + i % 7]) for i in range(1000)]
    points[501] = point(501, [0.0])
    points[502] = point(502, [1e6])
    few = thinned(points, 100)
    assert len(few) == 100
    assert max(p.high or 0 for p in few) == 1e6
    assert [p.mark for p in few if p.mark] == ["zero"]
    assert thinned(points, 1000) == points


def panel(*values: float | None, **known) -> Panel:
    points = tuple(point(i, [value], f"layer{i}") for i, value in enumerate(values, 1))
    return Panel("flow", "depth", "norm", (Curve("", points),), **known)


def test_a_power_is_a_straight_line_on_two_logarithmic_axes():
    widths = (64, 128, 256, 512)
    curve = Curve("fc", tuple(point(width, [width**0.5]) for width in widths))
    svg = panels.panel_svg(Panel("change", "width", "RMS", (curve,), log=True))
    (line,) = re.findall(r'class="line" d="M(.*?)"', svg)
    places = [tuple(map(float, one.split())) for one in line.split("L")]
    steps = [(x - u, y - v) for (x, y), (u, v) in zip(places[1:], places, strict=False)]
    for across, up in steps:
        assert (across, up) == pytest.approx(steps[0], abs=0.2)  # places are rounded to 0.1
    assert all(f">{width}</text>" in svg for width in widths)


def test_heights_are_where_the_scale_has_them():
    drawn = panels.panel_svg(panel(1e-4, 1e-2, 1.0))
    heights = [float(y) for y in re.findall(r'cy="([\d.]+)"', drawn)]
    assert heights[0] - heights[1] == pytest.approx(heights[1] - heights[2], abs=0.2)
    titles = [one.text for one in ET.fromstring(drawn).iter("title")]
    assert titles[0] == "layer1: 0.0001000"


@pytest.mark.parametrize(
    "values",
    [
        (1.0,),
        (5e-324, 1.7e308),
        (-1.7e308, 1.7e308),
        (1e300, 1e300),
        (None, 1.0, None),
        (-1.0, 2.0),
    ],
)
@pytest.mark.parametrize("bars", [False, True])
def test_odd_values_are_drawn(values, bars):
    drawn = panels.panel_svg(panel(*values, bars=bars, stretches=(Stretch(1, 2, "<x>", "bad"),)))
    ET.fromstring(drawn)
    assert not re.search(r"\bnan\b|\binf\b", drawn)


def test_nothing_to_see_is_known():
    assert not panel(None, 0.0, math.nan).has_points
    assert panel(None, 1.0).has_points


@pytest.mark.parametrize(
    ("scale", "ticks"),
    [
        (Scale(0.9, 1200.0, log=True), [1.0, 10.0, 100.0, 1000.0]),
        (Scale(0.0, 1.0), [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (Scale(1.0, 9.0), [2.0, 4.0, 6.0, 8.0]),
    ],
)
def test_ticks_are_round(scale, ticks):
    assert scale.ticks() == pytest.approx(ticks)
