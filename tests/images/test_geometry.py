"""Place of the model's input in the photograph, for transforms of every kind."""

from __future__ import annotations

import random

import pytest
import torch
import torchvision.transforms.functional as F
from PIL import Image, ImageOps

from gradscope.images.decoding import read_image, to_tensor
from gradscope.images.tracing import Geometry, trace

NEAR = F.InterpolationMode.NEAREST
ROUND = F.InterpolationMode.BILINEAR


def cropped(resize, crop):
    def transform(image):
        return to_tensor(F.center_crop(F.resize(image, [resize]), [crop, crop]))

    return transform


def normalised(image):
    tensor = to_tensor(F.resize(image, [40, 60]).convert("RGB"))
    return F.normalize(tensor, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225])[None]


#: A transform, the photograph's size, and places in it with where they must come to lie.
KNOWN = {
    "as it is": (to_tensor, (60, 40), {(0, 0): (0, 0), (60, 40): (60, 40)}),
    "28 pixels": (to_tensor, (28, 28), {(0, 28): (0, 28), (14, 7): (14, 7)}),
    "half": (cropped(50, 50), (100, 100), {(0, 0): (0, 0), (100, 50): (50, 25)}),
    "resize and crop": (
        cropped(64, 56),
        (900, 600),
        {(450, 300): (28, 28), (450, 0): (28, -4), (900, 300): (76, 28), (0, 600): (-20, 60)},
    ),
    "tall": (cropped(64, 56), (200, 700), {(100, 350): (28, 28), (0, 350): (-4, 28)}),
    # 853 columns, of which torchvision's crop leaves out 398 on the left.
    "a panorama": (
        cropped(64, 56),
        (4000, 300),
        {(2000, 150): (28.5, 28), (2000, 300): (28.5, 60)},
    ),
    "enlarged": (cropped(64, 64), (9, 9), {(0, 0): (0, 0), (4.5, 9): (32, 64)}),
    "normalised, in a batch": (normalised, (300, 200), {(0, 0): (0, 0), (300, 100): (60, 20)}),
    "inverted greys": (
        lambda image: to_tensor(ImageOps.invert(F.resize(image, [32, 32]).convert("L"))),
        (64, 64),
        {(0, 0): (0, 0), (64, 32): (32, 16)},
    ),
    "mirrored": (
        lambda image: to_tensor(F.hflip(image)),
        (64, 48),
        {(0, 0): (64, 0), (64, 12): (0, 12)},
    ),
    "a quarter turn": (
        lambda image: to_tensor(image.transpose(Image.Transpose.ROTATE_90)),
        (64, 48),
        {(0, 0): (0, 64), (64, 0): (0, 0), (64, 48): (48, 0)},
    ),
    "turned by 30 degrees": (
        lambda image: to_tensor(F.rotate(image, 30, interpolation=ROUND)),
        (100, 100),
        {(50, 50): (50, 50), (70, 50): (50 + 20 * 0.8660, 40)},
    ),
    "padded": (
        lambda image: F.normalize(
            to_tensor(F.pad(F.resize(image, [40, 80]), [0, 20])), [0.5], [0.2]
        ),
        (160, 80),
        {(0, 0): (0, 20), (160, 80): (80, 60)},
    ),
}


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize(("transform", "size", "places"), KNOWN.values(), ids=KNOWN)
def test_places_are_found(transform, size, places, mode):
    geometry = trace(transform, size, mode)
    for place, there in places.items():
        tolerance = 0.004 * max(geometry.input) + 0.05
        assert geometry.to_input(*place) == pytest.approx(there, abs=tolerance)


@pytest.mark.parametrize(("transform", "size", "places"), KNOWN.values(), ids=KNOWN)
def test_there_and_back(transform, size, places):
    geometry = trace(transform, size)
    for x, y in places:
        assert geometry.to_photo(*geometry.to_input(x, y)) == pytest.approx((x, y), abs=1e-6)


def test_a_change_of_perspective_is_found():
    corners = [[5, 4], [58, 8], [54, 60], [2, 57]]

    def transform(image):
        square = [[0, 0], [63, 0], [63, 63], [0, 63]]
        return to_tensor(F.perspective(image, square, corners, interpolation=ROUND))

    geometry = trace(transform, (64, 64))
    for (x, y), there in zip([(0, 0), (63, 0), (63, 63), (0, 63)], corners, strict=True):
        assert geometry.to_input(x + 0.5, y + 0.5) == pytest.approx(
            (there[0] + 0.5, there[1] + 0.5), abs=0.6
        )


def test_a_turned_photograph_and_its_file_are_one(tmp_path):
    path = tmp_path / "turned.jpg"
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (120, 60), "red").save(path, exif=exif)
    photo = read_image(path)
    assert photo.size == (60, 120)
    geometry = trace(cropped(64, 64), photo.size)
    assert geometry.to_input(30, 60) == pytest.approx((32, 32), abs=0.2)
    assert geometry.to_input(30, 0)[1] == pytest.approx(-32, abs=0.3)


def test_what_was_cut_off_is_known():
    assert trace(cropped(64, 64), (80, 80)).sees_all()
    assert not trace(cropped(64, 56), (80, 80)).sees_all()
    seen = trace(cropped(64, 64), (160, 80)).seen()
    assert [round(x) for x, _ in seen] == [40, 120, 120, 40]
    assert [round(y) for _, y in seen] == [0, 0, 80, 80]


def test_a_smaller_copy_keeps_the_geometry():
    geometry = trace(cropped(64, 56), (900, 600))
    small = geometry.resized((90, 60))
    assert small.photo == (90, 60)
    assert small.to_input(45, 30) == pytest.approx(geometry.to_input(450, 300))


def test_the_whole_photograph_stretched():
    geometry = Geometry.full((100, 50), (20, 20))
    assert geometry.to_input(100, 50) == (20, 20)
    assert geometry.sees_all()


def bent(image):
    tensor = to_tensor(image)[None]
    axis = torch.linspace(-1, 1, 64)
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    grid = torch.stack([x + 0.4 * torch.sin(3 * y), y], dim=-1)[None]
    return torch.nn.functional.grid_sample(tensor, grid, align_corners=False)[0]


def by_chance(image):
    left = random.randrange(0, 30)
    return to_tensor(image.crop((left, 0, left + 30, 30)))


def standardised(image):
    tensor = to_tensor(image)
    return (tensor - tensor.mean()) / (tensor.std() + 1e-6)


UNKNOWN = {
    "bent lines": (bent, (64, 64)),
    "another place each time": (by_chance, (64, 64)),
    "each picture by its own spread": (standardised, (64, 64)),
    "no picture left": (lambda image: torch.zeros(3, 32, 32), (64, 64)),
    "a photograph of four pixels": (to_tensor, (4, 4)),
    "a photograph of one line": (to_tensor, (400, 1)),
    "sizes of its own": (
        lambda image: torch.zeros(3, 32, 32 + image.getpixel((0, 0))[0] // 100),
        (64, 64),
    ),
}


@pytest.mark.parametrize(("transform", "size"), UNKNOWN.values(), ids=UNKNOWN)
def test_what_cannot_be_traced_is_not(transform, size):
    random.seed(0)
    assert trace(transform, size) is None


def test_the_transform_may_write_into_its_picture():
    def transform(image):
        image.paste(0, (0, 0, 1, 1))
        return to_tensor(image)

    assert trace(transform, (32, 32), "L").to_input(16, 8) == pytest.approx((16, 8), abs=0.2)
