"""Reads picture files to PIL images and tensors, and explains broken files."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from gradscope.errors import ConfigError, Place
from gradscope.images.files import FORMATS, existing_file, shown, suffixes

if TYPE_CHECKING:
    from torch import Tensor


def read_image(path: Path, *, place: Place | None = None) -> Image.Image:
    """Read a picture as 8-bit ``RGB`` or ``L``, upright.

    EXIF rotation is applied, transparency is laid on white, 16-bit and float greys are scaled to 8
    bits, palettes and CMYK become RGB, and an animation gives its first frame.

    Raises:
        ConfigError: not a picture, truncated, or larger than Pillow's limit against bombs.
    """
    existing_file(path, suffixes=suffixes(), place=place, what="picture")
    Image.init()
    formats = [name for name in FORMATS if name in Image.OPEN]
    try:
        with warnings.catch_warnings():
            # Pillow only warns between one and two times its limit.
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            warnings.simplefilter("ignore", UserWarning)  # corrupt EXIF: the picture is still good
            with Image.open(path, formats=formats) as file:
                file.load()
                image = ImageOps.exif_transpose(file) or file.copy()
            return _eight_bit(image)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise ConfigError(
            f"{shown(path)} is too large to be opened safely: it has more than "
            f"{Image.MAX_IMAGE_PIXELS:,} pixels, as a decompression bomb would",
            place=place,
            help="scale the picture down first, or save the array and use `file: picture.npy`",
        ) from error
    except UnidentifiedImageError as error:
        raise ConfigError(
            f"{shown(path)} is not a picture that can be read",
            place=place,
            help=f"the formats are {', '.join(formats)}; an array goes in `file: array.npy`",
        ) from error
    except Exception as error:  # decoders raise anything at all on broken bytes
        raise ConfigError(
            f"{shown(path)} cannot be read to its end: {error}",
            place=place,
            help="the file is damaged; make or fetch it again",
        ) from error


def read_array(path: Path) -> NDArray[np.float32]:
    """Read C×H×W or H×W numbers from a ``.npy``, as float32 [C, H, W].

    Raises:
        ConfigError: it is not an array of numbers, or has another shape.
    """
    help = "save it with `numpy.save`, as float C×H×W or H×W, the way the model takes it"
    try:
        with path.open("rb") as file:  # an archive of arrays would stay open
            values = np.load(file, allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        first = str(error).splitlines()[0]
        raise ConfigError(f"{path} cannot be read as an array: {first}", help=help) from None
    if not isinstance(values, np.ndarray) or values.dtype.kind not in "fiub":
        raise ConfigError(f"{path} holds no numbers", help=help)
    if values.ndim not in (2, 3) or not values.size:
        raise ConfigError(f"{path} has the shape {list(values.shape)}", help=help)
    return np.ascontiguousarray(values[None] if values.ndim == 2 else values, dtype=np.float32)


def reading_remarks(path: Path) -> tuple[str, ...]:
    """Describe the changes that ``read_image`` makes to the file, for a picture's foot.

    ``read_image`` must accept the file. Only its header is read.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # read_image reports the file's faults
        with Image.open(path) as file:
            mode, frames = file.mode, _frames(file)
            turned = file.getexif().get(0x0112, 1) not in (0, 1)
            clear = mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in file.info
            # An MPO holds views of one scene, of which the first is the photograph.
            moving = frames != 1 and file.format != "MPO"
    count = (
        "the first frame; the others are damaged" if not frames else f"the first of {frames} frames"
    )
    remarks = [count] if moving else []
    remarks += ["turned upright by its EXIF data"] if turned else []
    remarks += ["transparency laid on white"] if clear else []
    remarks += ["greys scaled to 8 bits"] if mode.startswith("I") or mode == "F" else []
    return tuple(remarks)


def _frames(file: Image.Image) -> int:
    """Return the number of pictures in a file; 0 if those after the first are damaged."""
    try:
        return int(getattr(file, "n_frames", 1))
    except Exception:  # decoders raise anything at all on broken bytes
        return 0


def _eight_bit(image: Image.Image) -> Image.Image:
    if image.mode in ("L", "RGB") and "transparency" not in image.info:
        return image
    if image.mode == "1":
        return image.convert("L")
    if image.mode.startswith("I") or image.mode == "F":
        values = np.asarray(image).astype(np.float64)
        top = 1.0 if image.mode == "F" else 65535.0
        if not (values.min(initial=0.0) >= 0 and values.max(initial=0.0) <= top):
            raise ValueError(f"its {image.mode} pixels go beyond 0 to {top:g}")
        return Image.fromarray((values * (255 / top)).round().astype(np.uint8))
    if image.mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in image.info:
        grey = image.mode in ("L", "LA", "La")
        layer = image.convert("RGBA")
        flat = Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer)
        return flat.convert("L" if grey else "RGB")
    return image.convert("RGB")


def to_tensor(image: Image.Image) -> Tensor:
    """Convert a picture to float32 ``[C, H, W]``, pixel / 255; ``C`` is 1 for ``L`` and 3 for
    ``RGB``."""
    import torch

    pixels = torch.from_numpy(np.array(image, dtype=np.uint8))
    pixels = pixels.unsqueeze(0) if pixels.ndim == 2 else pixels.permute(2, 0, 1)
    return pixels.contiguous().to(torch.float32) / 255


def input_picture(values: NDArray[np.float32]) -> Image.Image:
    """Return the model's input as a picture, without a photograph to draw on.

    ``values`` is ``[C, H, W]`` or ``[H, W]`` in the model's input space. The finite values are
    stretched from the smallest (black) to the largest (white); three channels are a colour
    picture, any other number their mean.
    """
    array = np.asarray(values, dtype=np.float64)
    array = array[None] if array.ndim == 2 else array
    array = array if len(array) == 3 else array.mean(axis=0, keepdims=True)
    finite = array[np.isfinite(array)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    return from_shares((array - low) / (high - low) if high > low else np.full_like(array, 0.5))


def from_shares(shares: NDArray[np.floating[Any]]) -> Image.Image:
    """Make a picture of brightness ``[C, H, W]`` from 0 to 1: three channels in colour, else their
    mean.

    NaN is grey.
    """
    array = shares if len(shares) in (1, 3) else shares.mean(axis=0, keepdims=True)
    pixels = np.rint(np.nan_to_num(array, nan=0.5, posinf=1.0, neginf=0.0).clip(0, 1) * 255)
    pixels = pixels.astype(np.uint8)
    return Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0).copy())
