"""Every kind of picture file is read alike, and every broken one is refused with its reason."""

import struct
import zlib

import numpy as np
import pytest
import torch
from PIL import Image

from gradscope.errors import ConfigError, Place
from gradscope.images.decoding import read_image, to_tensor
from gradscope.images.files import find_images

PLACE = Place("model.yaml", 3, 9, "input.image")
RED = (200, 30, 10)


def corner(size=(6, 4)) -> Image.Image:
    """Grey, with red in the upper left corner pixel."""
    image = Image.new("RGB", size, (90, 90, 90))
    image.putpixel((0, 0), RED)
    return image


def saved(path, image, **options):
    image.save(path, **options)
    return path


@pytest.mark.parametrize("suffix", ["png", "webp", "bmp", "tif", "ppm", "gif", "jpg"])
def test_formats(tmp_path, suffix):
    options = {"webp": {"lossless": True}, "jpg": {"quality": 100, "subsampling": 0}}
    image = read_image(saved(tmp_path / f"a.{suffix}", corner(), **options.get(suffix, {})))
    assert (image.mode, image.size) == ("RGB", (6, 4))
    tolerance = 8 if suffix == "jpg" else 0
    assert np.abs(np.array(image.getpixel((0, 0))) - RED).max() <= tolerance


def with_alpha():
    image = corner().convert("RGBA")
    image.putpixel((1, 0), (0, 0, 0, 0))
    return image


def sixteen_bit():
    return Image.fromarray(np.array([[0, 257 * 100, 65535]], dtype=np.uint16))


MODES = {
    # name: (image, mode after reading, first pixels of the first row)
    "bilevel": (Image.new("1", (2, 1), 1), "L", [255, 255]),
    "grey": (Image.new("L", (2, 1), 7), "L", [7, 7]),
    "grey and alpha": (Image.new("LA", (2, 1), (7, 0)), "L", [255, 255]),
    "palette": (corner().quantize(4), "RGB", [RED, (90, 90, 90)]),
    "transparent": (with_alpha(), "RGB", [RED, (255, 255, 255)]),
    "16-bit": (sixteen_bit(), "L", [0, 100, 255]),
}


@pytest.mark.parametrize(("image", "mode", "pixels"), MODES.values(), ids=MODES)
def test_modes_become_eight_bit(tmp_path, image, mode, pixels):
    read = read_image(saved(tmp_path / "a.png", image))
    assert read.mode == mode
    assert [read.getpixel((x, 0)) for x in range(len(pixels))] == pixels


def test_a_palette_with_a_transparent_colour(tmp_path):
    image = corner().quantize(4)
    path = saved(tmp_path / "a.png", image, transparency=image.getpixel((0, 0)))
    assert read_image(path).getpixel((0, 0)) == (255, 255, 255)


def test_cmyk(tmp_path):
    path = saved(tmp_path / "a.jpg", Image.new("CMYK", (8, 8), (0, 255, 255, 0)), quality=100)
    red, green, blue = read_image(path).getpixel((4, 4))
    assert red > 240 and max(green, blue) < 15


@pytest.mark.parametrize(("scale", "expected"), [(1.0, 128), (300.0, None)])
def test_float_greys_are_taken_between_0_and_1(tmp_path, scale, expected):
    image = Image.fromarray(np.full((2, 2), 0.5 * scale, dtype=np.float32))
    path = saved(tmp_path / "a.tiff", image)
    if expected is None:
        with pytest.raises(ConfigError, match="go beyond 0 to 1"):
            read_image(path)
    else:
        assert read_image(path).getpixel((0, 0)) == expected


def test_exif_rotation_is_applied(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees to the right
    image = read_image(saved(tmp_path / "a.png", corner(), exif=exif))
    assert image.size == (4, 6)
    assert image.getpixel((3, 0)) == RED


def test_the_first_frame_of_an_animation(tmp_path):
    frames = [Image.new("RGB", (3, 3), color) for color in (RED, (0, 0, 0))]
    path = saved(tmp_path / "a.gif", frames[0], save_all=True, append_images=frames[1:])
    assert read_image(path).getpixel((1, 1)) == RED


def test_a_photograph(tmp_path):
    from sklearn.datasets import load_sample_image

    pixels = load_sample_image("china.jpg")
    path = saved(tmp_path / "china.png", Image.fromarray(pixels))
    expected = torch.from_numpy(pixels.copy()).permute(2, 0, 1).float() / 255
    assert torch.equal(to_tensor(read_image(path)), expected)


def test_to_tensor_keeps_one_channel_of_a_grey():
    tensor = to_tensor(Image.new("L", (3, 2), 51))
    assert tensor.shape == (1, 2, 3)
    assert tensor.dtype == torch.float32
    assert tensor.unique().tolist() == pytest.approx([0.2])


def bomb(width=30_000, height=30_000) -> bytes:
    """A PNG of a few bytes that says it is 900 million pixels large."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + check

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    data = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 99)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + data


def truncated(tmp_path) -> bytes:
    rows = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    return saved(tmp_path / "whole.png", Image.fromarray(rows)).read_bytes()[:3000]


BROKEN = {
    "empty": (lambda _: b"", "is empty: 0 bytes"),
    "text": (lambda _: b"not a picture at all", "is not a picture that can be read"),
    "truncated": (truncated, "cannot be read to its end"),
    "a bomb": (lambda _: bomb(), "too large to be opened safely"),
    "half a bomb, of which Pillow only warns": (
        lambda _: bomb(10_000, 10_000),
        "too large to be opened safely",
    ),
    "a header alone": (lambda _: bomb(8, 8)[:20], "not a picture|cannot be read"),
    "PostScript, which would start a program": (
        lambda _: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n",
        "is not a picture that can be read",
    ),
}


@pytest.mark.parametrize(("content", "message"), BROKEN.values(), ids=BROKEN)
def test_broken_files(tmp_path, content, message):
    path = tmp_path / "broken.png"
    path.write_bytes(content(tmp_path))
    with pytest.raises(ConfigError, match=message) as caught:
        read_image(path, place=PLACE)
    problem = caught.value.problems[0]
    assert problem.place == PLACE
    assert problem.help
    assert "broken.png" in problem.message


def test_missing_files_name_the_closest(tmp_path):
    saved(tmp_path / "kitten.png", corner())
    with pytest.raises(ConfigError, match="there is no picture") as caught:
        find_images("kiten.png", tmp_path, place=PLACE)
    assert caught.value.problems[0].help == "did you mean `kitten.png`?"
    with pytest.raises(ConfigError) as caught:
        find_images("nowhere/kitten.png", tmp_path)
    assert "does not exist either" in caught.value.problems[0].help


def test_a_folder_is_not_a_picture(tmp_path):
    (tmp_path / "photos").mkdir()
    with pytest.raises(ConfigError, match="is a folder") as caught:
        find_images("photos", tmp_path)
    assert "photos/*.png" in caught.value.problems[0].help


def test_patterns(tmp_path):
    folder = tmp_path / "a [1]"  # brackets in the folder's own name are no pattern
    (folder / "deep").mkdir(parents=True)
    for name in ("b.png", "a.png", "c.jpg", "deep/d.png"):
        saved(folder / name, corner())

    def names(pattern):
        return [path.name for path in find_images(pattern, folder)]

    assert names("*.png") == ["a.png", "b.png"]
    assert names("**/*.png") == ["a.png", "b.png", "d.png"]
    assert names("deep/../[bc].*") == ["b.png", "c.jpg"]
    assert names("a.png") == ["a.png"]
    assert [p.name for p in find_images(f"{tmp_path}/*/a.png", folder)] == ["a.png"]
    with pytest.raises(ConfigError, match=r"no file matches `\*\.gif`"):
        names("*.gif")


def test_a_file_with_a_star_in_its_name_is_itself(tmp_path):
    saved(tmp_path / "a[1].png", corner())
    assert len(find_images("a[1].png", tmp_path)) == 1
