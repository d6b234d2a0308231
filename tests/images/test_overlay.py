"""Overlays, sheets and previews: their sizes, and what colour lies where."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torchvision.transforms.functional as F
from PIL import Image

from gradscope.images.colour_scales import scale_of, table
from gradscope.images.decoding import to_tensor
from gradscope.images.grid import bar_height, draw_bar, drawable, text_width, wrapped
from gradscope.images.photos import (
    HeatMap,
    Photo,
    magnification,
    magnified,
    painted,
    preview,
    reduced,
)
from gradscope.images.sheets import headline, overlay, remarks, sheets
from gradscope.images.tracing import trace


def photo(size=(400, 300), mode="RGB", **more):
    rng = np.random.default_rng(0)
    shape = (size[1], size[0]) if mode == "L" else (size[1], size[0], 3)
    picture = Image.fromarray(rng.integers(90, 160, shape, dtype=np.uint8))
    return Photo(picture, "photo.png", "tench", 12.345, **more)


def spot(height=32, width=32, top=8, left=16, side=4, value=1.0):
    values = np.zeros((height, width), dtype=np.float32)
    values[top : top + side, left : left + side] = value
    return values


def redness(picture):
    pixels = np.asarray(picture, dtype=np.float64)
    return pixels[..., 0] - pixels[..., 2]


def test_a_spot_is_coloured_where_it_is():
    drawn = redness(painted(photo(), HeatMap("grad-cam", spot())))
    # Rows 8 to 12 of 32 are pixels 75 to 112 of 300, columns 16 to 20 are 200 to 250 of 400.
    assert drawn[85:105, 210:240].min() > 60
    assert abs(drawn[150:, :]).max() < 3
    assert abs(drawn[:, :180]).max() < 3


def cropped(image):
    return to_tensor(F.center_crop(F.resize(image, [64]), [56, 56]))


def test_only_what_the_model_saw_is_coloured():
    geometry = trace(cropped, (400, 200))
    heat = HeatMap("occlusion", np.linspace(0.4, 1, 56 * 56).reshape(56, 56), True)
    drawn = redness(painted(photo((400, 200), geometry=geometry), heat))
    # 56 of 64 rows and columns around the centre; a line of a few pixels runs around them.
    assert abs(drawn[:, :107]).max() < 3
    assert abs(drawn[:8]).max() < 3
    assert drawn[20:180, 120:280].min() > 20


def test_the_rest_is_dimmed():
    pixels = np.zeros((200, 400, 3), dtype=np.uint8)
    pixels[::2] = 255
    stripes = Photo(Image.fromarray(pixels), "s", "t", geometry=trace(cropped, (400, 200)))
    drawn = np.asarray(painted(stripes, HeatMap("grad-cam", spot(56, 56))).convert("L"), dtype=int)
    inside, outside = drawn[100:140, 220:280], drawn[100:140, :80]
    assert np.ptp(outside) < np.ptp(inside)
    assert np.ptp(outside) < 90


def test_a_signed_map_is_red_for_and_blue_against():
    values = spot(top=2, left=2, value=1) + spot(top=20, left=20, value=-1)
    drawn = redness(painted(photo((320, 320)), HeatMap("input-x-gradient", values, True)))
    assert drawn[25:55, 25:55].min() > 40
    assert drawn[205:235, 205:235].max() < -40
    assert abs(drawn[120:180, 120:180]).max() < 3


def test_a_turned_photograph_is_coloured_where_the_model_looked():
    size = (200, 200)

    def turned(image):
        return to_tensor(image.transpose(Image.Transpose.ROTATE_90).resize((32, 32)))

    drawn = redness(
        painted(photo(size, geometry=trace(turned, size)), HeatMap("grad-cam", spot(top=0, left=0)))
    )
    # The input's upper left corner is the photograph's upper right.
    assert drawn[:12, 185:].min() > 60
    assert abs(drawn[:100, :100]).max() < 3


def test_nan_is_hatched_and_the_rest_coloured():
    values = spot()
    values[24:, :] = math.nan
    drawn = np.asarray(painted(photo((320, 320)), HeatMap("grad-cam", values)))
    assert set(np.unique(drawn[260:])) == {40, 215}
    assert redness(drawn)[90:110, 170:190].min() > 60


BLANK = {
    "zero": (np.zeros((8, 8)), "blank map: every value is 0"),
    "a constant": (np.full((8, 8), 3.0), "constant map: every value is 3.000"),
    "NaN": (np.full((8, 8), math.nan), "blank map: no value is finite"),
    "empty": (np.zeros((0, 8)), "empty map: it has no values"),
}


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize(("values", "said"), BLANK.values(), ids=BLANK)
def test_a_blank_map_is_drawn_without_colour_and_said(values, said, signed):
    heat = HeatMap("grad-cam", values.astype(np.float32), signed)
    assert abs(redness(painted(photo(), heat))).max() == 0
    assert remarks(photo(), heat)[0] == said
    assert overlay(photo(), heat).height < overlay(photo(), HeatMap("grad-cam", spot())).height
    assert len(sheets([(photo(), [heat])])) == 1


def test_a_map_of_another_size_than_the_geometry_is_refused():
    with pytest.raises(ValueError, match="do not fit a geometry"):
        painted(photo((400, 200), geometry=trace(cropped, (400, 200))), HeatMap("x", spot()))
    with pytest.raises(ValueError, match=r"a heat map is \[H, W\]"):
        painted(photo(), HeatMap("x", np.zeros((1, 2, 3), dtype=np.float32)))


#: The photograph's size, and that of the overlay with its remarks.
SIZES = {
    "a photograph": ((400, 300), (848, 449)),
    "tall": ((300, 800), (648, 949)),
    "wide: one below the other": ((900, 300), (932, 765)),
    "a digit": ((28, 28), (664, 457)),
    "one pixel": ((1, 1), (688, 487)),
    "one line": ((600, 1), (1852, 298)),
}


@pytest.mark.parametrize(("size", "expected"), SIZES.values(), ids=SIZES)
def test_the_size_of_the_picture(size, expected):
    picture = overlay(photo(size), HeatMap("grad-cam", np.arange(784.0).reshape(28, 28) / 783))
    assert picture.size == expected


def test_the_original_is_in_the_picture_pixel_by_pixel():
    shown = photo((120, 90), "L")
    whole = np.asarray(overlay(shown, HeatMap("grad-cam", spot())))
    wanted = np.asarray(magnified(shown.picture, magnification((120, 90))))
    height, width = wanted.shape[:2]
    found = [
        top
        for top in range(whole.shape[0] - height)
        if np.array_equal(whole[top : top + height, 16 : 16 + width], wanted)
    ]
    assert len(found) == 1


def test_small_pictures_are_magnified_and_large_are_not():
    assert magnification((28, 28)) == 11
    assert magnification((320, 200)) == 1
    assert magnification((1, 1)) == 320
    assert magnification((4000, 3)) == 1


def test_a_reduced_photograph_keeps_where_the_model_looked():
    geometry = trace(cropped, (400, 200))
    small = reduced(photo((400, 200), geometry=geometry), 100)
    assert small.picture.size == (100, 50)
    assert small.geometry.to_input(50, 25) == pytest.approx(geometry.to_input(200, 100))


def test_a_bar_has_its_colours_and_numbers_at_the_ends():
    for signed in (False, True):
        canvas = Image.new("RGB", (240, 60), "white")
        draw_bar(canvas, (20, 5), 200, scale_of(spot() - spot(top=0) * signed, signed=signed), 14)
        line = np.asarray(canvas)[12]
        assert line[21].tolist() == pytest.approx(table(signed)[0].tolist(), abs=6)
        assert line[218].tolist() == pytest.approx(table(signed)[-1].tolist(), abs=6)
        ink = (np.asarray(canvas.convert("L"))[25 : 5 + bar_height(14)] < 128).any(axis=0)
        columns = np.flatnonzero(ink)
        assert 20 <= columns[0] <= 24
        assert 214 <= columns[-1] <= 220
        assert ink[115:126].any() == signed


def test_what_stands_in_the_picture():
    shown = photo(remarks=("the first of 3 frames",))
    heat = HeatMap("grad-cam", spot(), remarks=("layer4 was chosen",))
    assert headline(shown, heat) == "grad-cam · tench · score 12.35"
    assert headline(Photo(shown.picture, "a", "7"), heat) == "grad-cam · 7"
    assert remarks(shown, heat) == [
        "layer4 was chosen",
        "which part of the photograph the model saw is not known: the map is stretched",
        "the first of 3 frames",
    ]
    seen = photo((400, 200), geometry=trace(cropped, (400, 200)))
    assert remarks(seen, HeatMap("x", spot(56, 56, side=8))) == [
        "the model saw the part inside the line; the rest is dimmed"
    ]


def test_text_that_the_font_has_not_is_written_otherwise():
    assert drawable("Größe – naïve × −1 …") == "Grosse - naive x -1 …"
    assert drawable("猫\n") == "\\u732b\\n"


def test_lines_are_broken_to_the_width():
    lines = wrapped("a title with some words and a_name_without_any_spaces_in_it", 16, 120)
    assert len(lines) > 3
    assert all(text_width(line, 16) <= 120 for line in lines)


def rows(images, methods):
    return [(photo((60, 40)), [HeatMap(f"m{i}", spot()) for i in range(methods)])] * images


def test_a_sheet_has_a_row_for_each_image():
    (page,) = sheets(rows(3, 6))
    assert page.width == 7 * (240 + 18) + 18
    (one,) = sheets(rows(1, 6))
    # Three rows and one have the same foot, a line of 19 pixels.
    assert page.height - one.height == 2 * (one.height - 18 - 19)


def test_many_methods_are_broken_and_many_images_paged():
    (page,) = sheets(rows(1, 18))
    (short,) = sheets(rows(1, 6))
    assert page.width == short.width
    assert page.height > 2 * short.height
    assert len(sheets(rows(8, 2))) == 1
    assert len(sheets(rows(9, 2))) == 2
    assert len(sheets(rows(3, 18))) == 2


def test_a_sheet_of_nothing_has_no_page():
    assert sheets([]) == []
    assert len(sheets([(photo(), [])])) == 1


CELL = re.compile(r"\x1b\[38;2;(\d+);(\d+);(\d+);48;2;(\d+);(\d+);(\d+)m▀")


def test_a_preview_has_two_pixels_in_each_character():
    picture = Image.new("RGB", (2, 2))
    picture.putdata([(1, 2, 3), (4, 5, 6), (7, 8, 9), (10, 11, 12)])
    text = preview(picture, 2, True)
    assert [tuple(map(int, cell)) for cell in CELL.findall(text)] == [
        (1, 2, 3, 7, 8, 9),
        (4, 5, 6, 10, 11, 12),
    ]


def test_a_preview_keeps_to_its_width_and_lines():
    for size in ((300, 200), (50, 400), (400, 10), (1, 1)):
        lines = preview(Image.new("RGB", size), 40, True, lines=10).splitlines()
        assert 1 <= len(lines) <= 10
        assert {len(CELL.findall(line)) for line in lines} <= set(range(1, 41))


def test_no_preview_without_colour():
    assert preview(Image.new("RGB", (4, 4)), 40, False) == ""
    assert preview(Image.new("RGB", (4, 4)), 0, True) == ""
