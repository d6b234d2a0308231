"""Picture file → PIL image → tensor, and every way in which a picture file can be wrong."""

from __future__ import annotations

import warnings
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradscope.errors import ConfigError, Place, closest_file
from gradscope.output_files import expanded

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL.Image import Image
    from torch import Tensor

#: Pillow reads many more; some of them (EPS) start other programs.
FORMATS = ("PNG", "JPEG", "MPO", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF")

_USUAL = {".png", ".jpg", ".jpeg", ".webp"}


def find_images(pattern: str, folder: Path, *, place: Place | None = None) -> list[Path]:
    """The picture files that a path or a glob names, sorted; relative to ``folder``.

    Raises:
        ConfigError: no such file (the closest name is offered), a folder, a glob without a match.
    """
    wanted = expanded(pattern)
    path = folder / wanted
    if not any(sign in pattern for sign in "*?[") or path.exists():
        return [existing_file(path, suffixes=suffixes(), place=place, what="picture")]
    # The folder itself may have brackets in its name: only what was written is a pattern.
    start = Path(wanted.anchor) if wanted.anchor else folder
    try:
        hits = start.glob(str(wanted.relative_to(wanted.anchor)))
        files = sorted(hit for hit in hits if hit.is_file())
    except (ValueError, NotImplementedError) as error:
        raise ConfigError(f"`{pattern}` is not a file pattern: {error}", place=place) from error
    if not files:
        raise ConfigError(
            f"no file matches `{pattern}`",
            place=place,
            help=f"patterns are taken from the config's folder; looked in {shown(folder)}",
        )
    return files


def pictures_in(folder: Path) -> list[Path]:
    """The pictures that lie in a folder itself, by their suffix, sorted.

    Raises:
        ConfigError: there is none.
    """
    kinds = suffixes()
    files = [p for p in sorted(folder.iterdir()) if p.suffix.lower() in kinds and p.is_file()]
    if not files:
        raise ConfigError(
            f"the folder {shown(folder)} holds no picture",
            help="name another, or a pattern that reaches deeper: `photos/**/*.jpg`",
        )
    return files


def pictures_below(folder: Path) -> list[Path]:
    """The pictures in a folder and in all folders below it, by their suffix, sorted.

    Raises:
        ConfigError: there is none.
    """
    kinds = suffixes()
    # A link that leads nowhere is listed: it is reported of as a picture that cannot be read.
    files = [p for p in sorted(folder.rglob("*")) if p.suffix.lower() in kinds and not p.is_dir()]
    if not files:
        raise ConfigError(
            f"the folder {shown(folder)} holds no picture, nor does one below it",
            help=f"pictures end in {', '.join(sorted(kinds & _USUAL))}, …",
        )
    return files


def suffixes() -> set[str]:
    """The suffixes of the formats that pictures are read from, ``.png`` and others."""
    from PIL import Image

    Image.init()
    return {suffix for suffix, name in Image.EXTENSION.items() if name in FORMATS}


def existing_file(
    path: Path,
    *,
    suffixes: Collection[str],
    place: Place | None = None,
    what: str = "file",
) -> Path:
    """``path``, if it is a file with something in it.

    Raises:
        ConfigError: it is missing (the closest of its folder's files with one of the suffixes is
            offered), a folder, a pipe or a device, or empty.
    """
    if path.is_dir():
        help = (
            f"name one file, or use a pattern: `{path.name}/*.png`" if what == "picture" else None
        )
        raise ConfigError(f"{shown(path)} is a folder, not a {what}", place=place, help=help)
    if not path.exists():
        parent = path.parent
        if not parent.is_dir():
            raise ConfigError(
                f"there is no {what} {shown(path)}",
                place=place,
                help=f"its folder {shown(parent)} does not exist either",
            )
        raise ConfigError(
            f"there is no {what} {shown(path)}",
            place=place,
            help=closest_file(path, suffixes)
            or f"paths are taken from the config's folder; looked in {shown(parent)}",
        )
    if not path.is_file():  # a pipe or a device may never end
        raise ConfigError(
            f"{shown(path)} is not a regular file", place=place, help="copy what it gives into one"
        )
    if path.stat().st_size == 0:
        raise ConfigError(
            f"{shown(path)} is empty: 0 bytes",
            place=place,
            help="the file was not written to its end; make or fetch it again",
        )
    return path


def shown(path: Path) -> str:
    """A path as a message prints it: relative to the working directory where it lies in it."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def read_image(path: Path, *, place: Place | None = None) -> Image:
    """A picture as 8-bit ``RGB`` or ``L``, upright.

    EXIF rotation is applied, transparency is laid on white, 16-bit and float greys are scaled to
    8 bits, palettes and CMYK become RGB, and of an animation the first frame is taken.

    Raises:
        ConfigError: not a picture, truncated, or larger than Pillow's limit against bombs.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

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
    """C×H×W or H×W numbers from a ``.npy``, as float32 [C, H, W].

    Raises:
        ConfigError: no array, no numbers, or of another shape.
    """
    import numpy as np

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
    """What ``read_image`` does to that file beyond decoding it, in words: for a picture's foot.

    The file must be one that ``read_image`` reads. Only its header is read.
    """
    from PIL import Image

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # read_image speaks of what is wrong with the file
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
    remarks += ["turned upright as its EXIF data say"] if turned else []
    remarks += ["transparency laid on white"] if clear else []
    remarks += ["greys scaled to 8 bits"] if mode.startswith("I") or mode == "F" else []
    return tuple(remarks)


def _frames(file: Image) -> int:
    """How many pictures a file holds; 0 if those after the first are damaged."""
    try:
        return int(getattr(file, "n_frames", 1))
    except Exception:  # decoders raise anything at all on broken bytes
        return 0


def _eight_bit(image: Image) -> Image:
    import numpy as np
    from PIL import Image

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


def to_tensor(image: Image) -> Tensor:
    """A picture as float32 ``[C, H, W]``, pixel / 255; ``C`` is 1 for ``L`` and 3 for ``RGB``."""
    import numpy as np
    import torch

    pixels = torch.from_numpy(np.array(image, dtype=np.uint8))
    pixels = pixels.unsqueeze(0) if pixels.ndim == 2 else pixels.permute(2, 0, 1)
    return pixels.contiguous().to(torch.float32) / 255


def input_picture(values: NDArray[np.float32]) -> Image:
    """What a model saw as a picture, where there is no photograph to draw on.

    ``values`` is ``[C, H, W]`` or ``[H, W]`` in the model's input space. The finite values are
    stretched from the smallest (black) to the largest (white); three channels are a colour
    picture, any other number their mean.
    """
    import numpy as np

    array = np.asarray(values, dtype=np.float64)
    array = array[None] if array.ndim == 2 else array
    array = array if len(array) == 3 else array.mean(axis=0, keepdims=True)
    finite = array[np.isfinite(array)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    return from_shares((array - low) / (high - low) if high > low else np.full_like(array, 0.5))


def from_shares(shares: NDArray[np.floating[Any]]) -> Image:
    """A picture of brightness ``[C, H, W]`` from 0 to 1: three channels in colour, else their mean.

    What is no number is grey.
    """
    import numpy as np
    from PIL import Image

    array = shares if len(shares) in (1, 3) else shares.mean(axis=0, keepdims=True)
    pixels = np.rint(np.nan_to_num(array, nan=0.5, posinf=1.0, neginf=0.0).clip(0, 1) * 255)
    pixels = pixels.astype(np.uint8)
    return Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0).copy())
