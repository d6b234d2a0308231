"""Figures as files: readable by others, the same each time, whatever names and settings are."""

from __future__ import annotations

import io
import math
import re
from xml.etree import ElementTree as ET

import matplotlib as mpl
import pytest
from matplotlib.figure import Figure
from PIL import Image

from gradscope.charts import figure
from gradscope.charts.maps import Map
from gradscope.charts.panels import Curve, Panel, Stretch, point

NAME = "a$_b$\x1b\u202e層<&>.weight"


def charts() -> list[Panel | Map]:
    points = tuple(point(i, [10.0**-i, 2 * 10.0**-i], f"{NAME}{i}") for i in range(1, 6))
    odd = (point(6, [0.0], NAME), point(7, [None], NAME), point(8, [math.nan], NAME))
    panel = Panel("flow $x$", "depth", "norm", (Curve("", (*points, *odd)),))
    curves = (Curve("one", points), Curve(NAME, points))
    stretches = (Stretch(1, 3, "found", "bad"), Stretch(2, 2, "happened"))
    values = ((1.0, 1e-3, None), (0.0, math.nan, 1e300))
    return [
        panel,
        Panel("bars", "depth", "MiB", (Curve("", points),), bars=True),
        Panel("steps", "step", "", curves, stretches=stretches),
        Map("map", "norm", "steps", (NAME, "b"), (1, 20, 300), values),
    ]


@pytest.fixture(scope="module", params=figure.SUFFIXES)
def file(request) -> tuple[str, bytes]:
    return request.param, figure.drawn(f"title {NAME}", charts(), request.param)


@pytest.mark.slow
def test_each_kind_of_file_is_what_it_says(file):
    suffix, data = file
    if suffix == ".png":
        image = Image.open(io.BytesIO(data)).convert("RGB")
        assert image.width == 1400
        assert len(image.getcolors(1 << 24)) > 50
    elif suffix == ".svg":
        assert ET.fromstring(data).tag.endswith("svg")
        assert not re.search(rb"<dc:date", data)
    else:
        assert data.startswith(b"%PDF-")


@pytest.mark.slow
def test_the_same_charts_are_the_same_file(file):
    suffix, data = file
    with mpl.rc_context({"font.size": 30, "axes.facecolor": "red"}):
        assert figure.drawn(f"title {NAME}", charts(), suffix) == data


def test_settings_are_left_as_they_were():
    before = dict(mpl.rcParams)
    figure.drawn("title", charts()[:1], ".png")
    assert dict(mpl.rcParams) == before


@pytest.mark.parametrize("values", [(5e-324, 1.7e308), (-1.7e308, 1.7e308), (2.0, 2.0)])
def test_any_float_has_a_place(values):
    points = tuple(point(i, [value]) for i, value in enumerate(values))
    data = figure.drawn("", [Panel("a", "b", "c", (Curve("", points),))], ".png")
    assert Image.open(io.BytesIO(data)).width == 1400


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 3, 60])
def test_the_label_of_a_map_is_as_long_as_its_scale(rows, monkeypatch):
    """A longer one is cut at the edge, or lies on the next chart's."""
    label = "share without a gradient in the full batch"
    names = tuple(f"layer{i}.bias" for i in range(rows))
    one = Map("dead units", label, "steps", names, (1, 2), ((0.0, 0.5),) * rows, share=True)
    drawn: list[Figure] = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda f, *a, **k: (drawn.append(f), save(f, *a, **k)))
    figure.drawn("title", [one, one, one], ".png")
    (made,) = drawn
    bars = [axes for axes in made.axes if axes.get_ylabel()]
    assert len(bars) == 3
    for bar in bars:
        written = bar.yaxis.label
        assert " ".join(written.get_text().split()) == label
        extent = written.get_window_extent()
        assert extent.y0 >= made.bbox.y0
        assert extent.y1 <= made.bbox.y1
        assert extent.height <= 1.25 * bar.get_window_extent().height
