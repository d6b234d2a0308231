"""The pictures to explain: files through the model's transform, arrays and tensors as they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gradscope import images
from gradscope.errors import OptionError
from gradscope.loading.viewing import Viewer
from gradscope.output_files import expanded

if TYPE_CHECKING:
    from gradscope.images import Photo


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    """One picture: its name, what the model gets of it [C, H, W], and the photograph to draw on."""

    path: str
    values: Tensor
    photo: Photo


def picture_files(words: Sequence[str | Path]) -> list[Path]:
    """The files of paths, patterns and folders, each once.

    Raises:
        ConfigError: no such file, or a pattern or a folder without a picture.
    """
    folder = Path.cwd()
    files: list[Path] = []
    for word in words:
        inside = folder / expanded(word)
        files += (
            images.pictures_in(inside) if inside.is_dir() else images.find_images(str(word), folder)
        )
    return list(dict.fromkeys(files))


def read_pictures(words: Sequence[str | Path], viewer: Viewer) -> list[Picture]:
    """The files of paths, patterns and folders, through the viewer's transform; arrays as they are.

    Raises:
        ConfigError: no such file, or one that is no picture and no array.
    """
    return [_picture(path, viewer) for path in picture_files(words)]


def _picture(path: Path, viewer: Viewer) -> Picture:
    name = images.shown(path)
    if path.suffix.lower() == ".npy":
        values = images.read_array(path)
        photo = images.Photo(images.input_picture(values), path.name, "")
        return Picture(name, torch.from_numpy(values), photo)
    image = images.read_image(path)
    geometry = images.trace(viewer.transform, image.size, image.mode)
    remarks = images.reading_remarks(path)
    photo = images.Photo(image, path.name, "", None, geometry, tuple(remarks))
    return Picture(name, viewer.transform(image), photo)


def tensor_pictures(tensor: Tensor) -> list[Picture]:
    """Those of a tensor [N, C, H, W].

    Raises:
        OptionError: a tensor of another shape.
    """
    if tensor.dim() != 4 or not len(tensor):
        raise OptionError(f"a tensor {list(tensor.shape)}", help="pictures are [N, C, H, W]")
    # The values keep their precision; only what is drawn is float32.
    return [
        Picture(
            f"[{i}]", one, images.Photo(images.input_picture(one.float().numpy()), f"[{i}]", "")
        )
        for i, one in enumerate(tensor.detach().cpu())
    ]


def pixel_in_input(picture: Picture, row: int, column: int) -> tuple[int, int]:
    """Row and column in the model's input of a pixel of the picture.

    Raises:
        OptionError: the picture has no such pixel, or the model does not see it.
    """
    height, width = picture.values.shape[-2:]
    geometry = picture.photo.geometry
    across, down = geometry.photo if geometry else (width, height)
    name = f"pixel {row},{column}"
    if row >= down or column >= across:
        raise OptionError(
            f"{picture.photo.name} has no {name}: it has {down} rows and {across} columns",
            help="`--pixels ROW,COLUMN` counts from 0, from the upper left corner",
        )
    if geometry is None:
        return row, column
    x, y = geometry.to_input(column + 0.5, row + 0.5)
    if not (0 <= x < width and 0 <= y < height):
        raise OptionError(
            f"the model does not see {name} of {picture.photo.name}: its transform cuts it off",
            help="`--crop` draws what the model sees; `input.transform` sets what it does",
        )
    return int(y), int(x)
