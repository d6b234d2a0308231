"""Drawing of a map in other styles: fainter, in other colours, cropped."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torchvision.transforms.functional as F
from PIL import Image

from gradscope.images.colour_scales import table
from gradscope.images.decoding import to_tensor
from gradscope.images.photos import HeatMap, Photo, cropped, painted
from gradscope.images.tracing import Geometry, trace


def photo(size: tuple[int, int], geometry: Geometry | None = None) -> Photo:
    ramp = np.linspace(0, 255, size[0] * size[1] * 3).reshape(size[1], size[0], 3)
    return Photo(Image.fromarray(ramp.astype(np.uint8)), "a.png", "class 1", geometry=geometry)


def centre(image: Image.Image):
    return to_tensor(F.center_crop(F.resize(image, [64]), [56, 56]))


HEAT = np.linspace(0, 1, 56 * 56, dtype=np.float32).reshape(56, 56)


def test_a_fainter_map_leaves_more_of_the_photograph() -> None:
    whole = photo((400, 400))
    grey = np.asarray(painted(whole, HeatMap("m", HEAT * 0))).astype(int)
    off = [
        np.abs(
            np.asarray(painted(whole, HeatMap("m", HEAT, alpha=alpha))).astype(int) - grey
        ).mean()
        for alpha in (0.2, 0.6, 1.0)
    ]
    assert off == sorted(off) and off[0] < 0.5 * off[2]


@pytest.mark.parametrize("signed", [False, True])
def test_a_full_alpha_shows_the_strongest_colour_itself(signed: bool) -> None:
    heat = np.where(np.arange(56) < 28, -1.0, 1.0).astype(np.float32) if signed else None
    values = np.tile(heat, (56, 1)) if heat is not None else HEAT
    drawn = np.asarray(painted(photo((400, 400)), HeatMap("m", values, signed, alpha=1.0)))
    assert drawn[-1, -1].tolist() == pytest.approx(table(signed)[-1].tolist(), abs=3)


def test_another_colour_map_reaches_map_and_scale() -> None:
    heat = HeatMap("m", HEAT, alpha=1.0, colormap="viridis")
    drawn = np.asarray(painted(photo((400, 400)), heat))
    assert drawn[-1, -1].tolist() == pytest.approx(table(False, "viridis")[-1].tolist(), abs=3)
    assert heat.scale.colormap == "viridis"


@pytest.mark.parametrize("size", [(900, 600), (600, 900), (640, 640)])
def test_a_crop_keeps_every_place_where_it_was(size: tuple[int, int]) -> None:
    whole = photo(size, trace(centre, size))
    part = cropped(whole)
    left, top = (min(x[i] for x in whole.geometry.seen()) for i in (0, 1))
    assert part.picture.size == pytest.approx((size[1] * 7 / 8,) * 2, abs=2) or size[0] < size[1]
    assert part.geometry.photo == part.picture.size
    for x, y in ((10, 20), (100, 300)):
        there = whole.geometry.to_input(x + round(left), y + round(top))
        assert part.geometry.to_input(x, y) == pytest.approx(there, abs=0.1)
    assert part.geometry.sees_all()
    assert painted(part, HeatMap("m", HEAT)).size == part.picture.size
    assert part.remarks[0] == "only what the model saw is drawn"


def test_what_was_seen_whole_is_not_cropped() -> None:
    for geometry in (None, Geometry.full((400, 300), (56, 56))):
        whole = photo((400, 300), geometry)
        assert cropped(whole) is whole


def test_a_place_beyond_the_photograph_is_not_drawn() -> None:
    padded = Geometry((100, 50), (56, 56), (0.56, 0, 0, 0, 0.56, 14, 0, 0, 1))
    part = cropped(photo((100, 50), replace(padded, matrix=(1.12, 0, 0, 0, 0.56, 14, 0, 0, 1))))
    assert part.picture.size[1] == 50
