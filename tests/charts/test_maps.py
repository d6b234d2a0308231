"""Maps: each pixel is its value's colour, as a decoder that is not ours reads it."""

from __future__ import annotations

import io
import math

import pytest
from PIL import Image

from gradscope.charts import maps
from gradscope.charts.maps import Map
from gradscope.charts.scales import viridis


def made(*rows: tuple[float | None, ...], share: bool = False) -> Map:
    names = tuple(f"layer{i}" for i in range(len(rows)))
    return Map("a", "b", "c", names, tuple(range(1, len(rows[0]) + 1)), rows, share)


def decoded(of: Map) -> Image.Image:
    return Image.open(io.BytesIO(maps.png(of))).convert("RGBA")


def color(share: float) -> tuple[int, ...]:
    return (*map(round, viridis(share)), 255)


def test_values_lie_on_the_scale_by_their_logarithm():
    image = decoded(made((1e-4, 1e-3, 1e-2), (1.0, 0.1, 1e-4)))
    assert image.size == (3, 2)
    found = [image.getpixel((i % 3, i // 3)) for i in range(6)]
    wanted = [color(share) for share in (0, 0.25, 0.5, 1, 0.75, 0)]
    for one, other in zip(found, wanted, strict=True):
        assert max(abs(a - b) for a, b in zip(one, other, strict=True)) <= 2


def test_a_share_goes_from_none_to_all():
    image = decoded(made((0.0, 1.0), share=True))
    assert [image.getpixel((i, 0)) for i in range(2)] == [color(0), color(1)]


def test_what_is_no_value_has_a_colour_of_its_own():
    image = decoded(made((None, 0.0, math.nan, math.inf, 2.0, 3.0)))
    nothing, zero, nan, inf, *_ = (image.getpixel((i, 0)) for i in range(6))
    assert nothing[3] == 0
    assert zero == (0, 0, 0, 255)
    assert nan == inf == (232, 0, 11, 255)


def test_many_rows_are_shown_by_the_middles_of_stretches():
    rows = [(float(i),) * 2 for i in range(1, 1 + 3 * maps.ROWS)]
    shrunk = maps.shrunk(made(*rows))
    assert len(shrunk.names) == maps.ROWS
    assert [row[0] for row in shrunk.values[:3]] == [2.0, 5.0, 8.0]
    lost = maps.shrunk(made((math.nan, *rows[0]), *((1.0, *row) for row in rows)))
    assert math.isnan(lost.values[0][0])


@pytest.mark.parametrize("rows", [((None, None),), ((0.0, 0.0),), ((math.nan, 1e308),)])
def test_odd_maps_are_drawn(rows):
    text = maps.map_svg(made(*rows), lambda name: None)
    assert text.startswith("<svg")
    assert "nan" not in text.replace("Finance", "")
