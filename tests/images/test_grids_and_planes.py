"""Grids of small pictures, filters as pictures, and planes of points."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from gradscope.images.colour_scales import scale_of
from gradscope.images.decoding import from_shares
from gradscope.images.grid import (
    MARK,
    ROWS,
    Tile,
    colored_kernel,
    grid,
    in_rows,
    mapped_kernel,
    scattered,
    spread_out,
)


def tiles(count: int, size=(10, 6)) -> list[Tile]:
    return [Tile(Image.new("RGB", size, (i, 90, 90)), f"{i}") for i in range(count)]


def test_a_grid_has_a_page_for_so_many_rows():
    rows = in_rows(tiles(2 * ROWS * 3 + 1), 3)
    pages = grid(["a title"], rows, side=40)
    assert len(pages) == 3
    assert pages[0].size == pages[1].size
    assert pages[2].height < pages[0].height
    assert len(grid(["nothing to show"], [], side=40)) == 1


def test_small_pictures_keep_their_pixels_and_marked_ones_have_a_frame():
    (page,) = grid(["t"], [tiles(1, (4, 4))], side=40)
    colors = {color for _, color in page.getcolors(1 << 20)}
    assert (0, 90, 90) in colors and MARK not in colors
    tile = Tile(Image.new("RGB", (4, 4)), marked=True)
    (page,) = grid(["t"], [[tile]], side=40)
    assert MARK in {color for _, color in page.getcolors(1 << 20)}


def test_a_long_title_is_broken_and_not_cut():
    (short,) = grid(["t"], [tiles(1)], side=40)
    (long,) = grid(["many words " * 40], [tiles(1)], side=40)
    assert (long.width, long.height > short.height) == (short.width, True)


def test_a_kernel_of_colours_is_grey_at_zero():
    weights = np.zeros((3, 2, 2), dtype=np.float32)
    weights[0, 0, 0], weights[2, 1, 1] = 1, -1
    pixels = np.asarray(colored_kernel(weights, 1.0))
    assert pixels[0, 0].tolist() == [255, 128, 128]
    assert pixels[1, 1].tolist() == [128, 128, 0]


def test_a_kernel_of_many_channels_has_each_once():
    weights = np.stack([np.full((2, 3), i, dtype=np.float32) for i in range(5)])
    scale = scale_of(weights.reshape(5, -1), signed=False)
    pixels = np.asarray(mapped_kernel(weights, scale))
    assert pixels.shape == (8, 7, 3)  # three rows of two, with a line of paper between
    assert len(np.unique(pixels.reshape(-1, 3), axis=0)) == 6


LABELS = {
    "none": [None] * 6,
    "two": ["a", "b"] * 3,
    "some without": ["a", None, "b"] * 2,
    "signs": ["_hidden", "$x^2$", "ä ß 漢"] * 2,
    "many": [f"class {i}" for i in range(6)] * 12,
}


@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS)
def test_a_plane_of_any_classes(labels):
    places = np.random.default_rng(0).normal(size=(len(labels), 2))
    shown = {i: Image.new("L", (9, 5), 200) for i in spread_out(places)}
    picture = scattered(places, labels, shown, ["a plane", "model: x"], "foot")
    assert picture.mode == "RGB"
    assert min(picture.size) > 1000


def test_spread_out_points_do_not_lie_together():
    places = np.zeros((50, 2))
    assert spread_out(places) == [0]
    places[7] = 1
    assert len(spread_out(places)) == 2


def test_a_picture_from_shares():
    grey = from_shares(np.array([[[0.0, 0.5, 1.0, np.nan, 2.0]]]))
    assert np.asarray(grey).tolist() == [[0, 128, 255, 128, 255]]
    assert from_shares(np.ones((3, 2, 2))).mode == "RGB"
    assert from_shares(np.ones((5, 2, 2))).mode == "L"
