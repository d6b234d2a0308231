"""Overlays on every kind of picture file, and what is reported of how it was read."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from gradscope.images.decoding import input_picture, read_image, reading_remarks, to_tensor
from gradscope.images.photos import HeatMap, Photo
from gradscope.images.sheets import overlay
from gradscope.images.tracing import trace

GREY16 = Image.fromarray((np.arange(48 * 64).reshape(48, 64) * 21).astype(np.uint16))
FLOAT = Image.fromarray(np.linspace(0, 1, 48 * 64, dtype=np.float32).reshape(48, 64))
COLOUR = Image.effect_mandelbrot((64, 48), (-2, -1, 1, 1), 30).convert("RGB")
CLEAR = COLOUR.convert("RGBA")
CLEAR.putalpha(Image.linear_gradient("L").resize((64, 48)))

#: The file's name, its picture, how it is saved, and what is reported of it.
FILES = {
    "png": ("a.png", COLOUR, {}, ()),
    "jpeg": ("a.jpg", COLOUR, {}, ()),
    "webp": ("a.webp", COLOUR, {"lossless": True}, ()),
    "bmp": ("a.bmp", COLOUR, {}, ()),
    "grey": ("a.png", COLOUR.convert("L"), {}, ()),
    "one bit": ("a.png", COLOUR.convert("1"), {}, ()),
    "palette": ("a.png", COLOUR.quantize(16), {}, ()),
    "CMYK": ("a.jpg", COLOUR.convert("CMYK"), {}, ()),
    "alpha": ("a.png", CLEAR, {}, ("transparency laid on white",)),
    "grey and alpha": ("a.png", CLEAR.convert("LA"), {}, ("transparency laid on white",)),
    "16 bits": ("a.png", GREY16, {}, ("greys scaled to 8 bits",)),
    "float": ("a.tiff", FLOAT, {}, ("greys scaled to 8 bits",)),
    "an animation": (
        "a.gif",
        COLOUR,
        {"save_all": True, "append_images": [COLOUR.rotate(90), COLOUR.rotate(180)]},
        ("the first of 3 frames",),
    ),
    "one frame": ("a.gif", COLOUR, {}, ()),
}


@pytest.mark.parametrize(("name", "picture", "options", "said"), FILES.values(), ids=FILES)
def test_each_kind_of_file_has_an_overlay(name, picture, options, said, tmp_path):
    path = tmp_path / name
    picture.save(path, **options)
    read = read_image(path)
    geometry = trace(to_tensor, read.size, read.mode)
    assert geometry.sees_all()
    photo = Photo(read, name, "a class", 1.0, geometry, reading_remarks(path))
    assert photo.remarks == said
    values = np.linspace(0, 1, 48 * 64, dtype=np.float32).reshape(48, 64)
    drawn = overlay(photo, HeatMap("gradient", values))
    # Magnified, and one line more at the foot where something was said.
    assert drawn.size == (688, 389 + 18 * len(said))


def test_a_turned_file_is_said(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 8
    COLOUR.save(tmp_path / "a.jpg", exif=exif)
    assert reading_remarks(tmp_path / "a.jpg") == ("turned upright by its EXIF data",)


def test_an_array_becomes_a_picture():
    values = np.array([[-1.0, 0.0], [1.0, np.nan]], dtype=np.float32)
    assert np.asarray(input_picture(values)).tolist() == [[0, 128], [255, 128]]
    colour = np.stack([values, values * 2, values * 4])
    assert input_picture(colour).mode == "RGB"
    assert np.asarray(input_picture(colour))[1, 0].tolist() == [159, 191, 255]
    assert input_picture(np.ones((5, 3, 4), dtype=np.float32)).size == (4, 3)
    assert input_picture(np.ones((1, 3, 4), dtype=np.float32)).getpixel((0, 0)) == 128
