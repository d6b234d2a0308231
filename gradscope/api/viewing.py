"""A model for pictures, its pictures, and their maps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gradscope import pages
from gradscope.config import loaded_config as configs
from gradscope.errors import ConfigError, OptionError
from gradscope.images import sheets
from gradscope.images.decoding import input_picture, read_array, read_image, reading_remarks
from gradscope.images.files import (
    USUAL,
    check_look,
    check_suffix,
    find_images,
    page_files,
    pictures_in,
    shown,
)
from gradscope.images.photos import Photo
from gradscope.images.sheets import encoded, overlay
from gradscope.images.tracing import trace
from gradscope.loading.vision_models import Viewer, load_viewer
from gradscope.output_files import check_file, expanded, write_file
from gradscope.records.run import RunInfo
from gradscope.records.saliency import SaliencyReport
from gradscope.reporters.saliency import FORMATS
from gradscope.reporters.views import TextView


def view(
    model: str | None,
    overrides: Sequence[str] = (),
    settings: dict[str, Any] | None = None,
    allow: Sequence[str] = (),
    *,
    input: str | None = None,
) -> Viewer:
    """Load the model for pictures; without a name, ResNet-18 with its weights.

    ``input`` names the input for the pictures, if there are several.

    Raises:
        GradscopeError: the config or an option is wrong, or the model raised. If the weights cannot
            be loaded, no other network replaces it; the error says what to do.
    """
    settings = settings or {}
    if model is not None:
        return load_viewer(_read(model, overrides, settings), allow, input=input)
    resnet = _read("torchvision:resnet18", ["weights=DEFAULT", *overrides], settings)
    try:
        return load_viewer(resnet, allow, input=input)
    except ConfigError as error:
        problem = error.problems[0]
        if "weights" not in problem.message:
            raise
        usual = "without a model, pictures are read by torchvision's ResNet-18"
        yours = "name a model of yours: `-m net.yaml` (`-m demo` reads digits)"
        help = f"{problem.help}; or {yours}" if problem.help else yours
        raise ConfigError(problem.message, help=help, notes=(usual,)) from error


def _read(model: str, overrides: Sequence[str], settings: dict[str, Any]) -> configs.LoadedConfig:
    """Read the config, in eval mode unless the config, an override or a flag sets another mode."""
    loaded = configs.read(model, overrides, options=settings)
    if "mode" in loaded.given:
        return loaded
    return configs.read(model, overrides, options={"mode": "eval", **settings})


def run_of(viewer: Viewer, notices: Sequence[str], seed: int) -> RunInfo:
    """Return the settings of a viewer's run, with its notices."""
    return RunInfo(
        model=viewer.name,
        device=str(viewer.device),
        dtype=str(viewer.dtype).removeprefix("torch."),
        mode="train" if viewer.model.training else "eval",
        seed=seed,
        steps=1,
        loss="",
        notices=tuple(notices),
    )


def about(viewer: Viewer) -> str:
    """Return the caption's line on the model of a picture."""
    return f"model: {viewer.name}" + (", random weights" if viewer.random else "")


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    """One picture: its name, the model's input [C, H, W], and the photograph to draw on."""

    path: str
    values: Tensor
    photo: Photo


def picture_files(words: Sequence[str | Path]) -> list[Path]:
    """Return the files of paths, patterns and folders, each once.

    Raises:
        ConfigError: a file does not exist, or a pattern or a folder has no picture.
    """
    folder = Path.cwd()
    files: list[Path] = []
    for word in words:
        inside = folder / expanded(word)
        files += pictures_in(inside) if inside.is_dir() else find_images(str(word), folder)
    return list(dict.fromkeys(files))


def read_pictures(words: Sequence[str | Path], viewer: Viewer) -> list[Picture]:
    """Read the files of paths, patterns and folders through the viewer's transform; arrays
    unchanged.

    Raises:
        ConfigError: a file does not exist, or is neither a picture nor an array.
    """
    return [_picture(path, viewer) for path in picture_files(words)]


def _picture(path: Path, viewer: Viewer) -> Picture:
    name = shown(path)
    if path.suffix.lower() == ".npy":
        values = read_array(path)
        photo = Photo(input_picture(values), path.name, "")
        return Picture(name, torch.from_numpy(values), photo)
    image = read_image(path)
    geometry = trace(viewer.transform, image.size, image.mode)
    remarks = reading_remarks(path)
    photo = Photo(image, path.name, "", None, geometry, tuple(remarks))
    return Picture(name, viewer.transform(image), photo)


def tensor_pictures(tensor: Tensor) -> list[Picture]:
    """Return the pictures of a tensor [N, C, H, W].

    Raises:
        OptionError: the tensor has another shape.
    """
    if tensor.dim() != 4 or not len(tensor):
        raise OptionError(f"a tensor {list(tensor.shape)}", help="pictures are [N, C, H, W]")
    # The values keep their precision; only what is drawn is float32.
    return [
        Picture(f"[{i}]", one, Photo(input_picture(one.float().numpy()), f"[{i}]", ""))
        for i, one in enumerate(tensor.detach().cpu())
    ]


def pixel_in_input(picture: Picture, row: int, column: int) -> tuple[int, int]:
    """Return the row and column, in the model's input, of a pixel of the picture.

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
            help="`--crop` draws only the model's input; `input.transform` changes the transform",
        )
    return int(y), int(x)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Saliency:
    """The report, with the photograph and the raw maps [H, W] of each picture."""

    report: SaliencyReport
    photos: tuple[Photo, ...]
    maps: tuple[tuple[Tensor, ...], ...]

    def __repr__(self) -> str:
        return repr(self.report)

    def __str__(self) -> str:
        return str(self.report)

    def _repr_html_(self) -> str:
        return pages.fragment(FORMATS["html"].page(self.report, TextView(), self.drawn()))

    def drawn(
        self, *, alpha: float | None = None, colormap: str = USUAL, crop: bool = False
    ) -> list[list[bytes]]:
        """Return each picture's maps as PNG files: the map over the photograph, with its scale."""
        rows = sheets.rows(
            self.report, self.photos, self.maps, alpha=alpha, colormap=colormap, crop=crop
        )
        return [
            [encoded(overlay(photo, heat), Path("map.png")) for heat in heats]
            for photo, heats in rows
        ]

    def save(
        self,
        path: str | Path,
        *,
        alpha: float | None = None,
        colormap: str = USUAL,
        crop: bool = False,
        force: bool = False,
    ) -> None:
        """Write the pictures to one file, as ``-o`` does; with ``.json`` the report, with ``.html``
        a page of both.

        Args:
            path: the file; several pages are numbered.
            alpha: the opacity of the strongest colour over the photograph, above 0, up to 1.
            colormap: the colours of unsigned maps.
            crop: draw only the model's part of the picture.
            force: replace an existing file.

        Raises:
            OptionError: the suffix is unknown, or a file exists or cannot be written.
        """
        path = expanded(path)
        if path.suffix.lower() == ".json":
            self.report.save(path, force=force)
            return
        check_look(alpha, colormap)
        if path.suffix.lower() == ".html":
            drawn = self.drawn(alpha=alpha, colormap=colormap, crop=crop)
            check_file(path, force=force)
            text = FORMATS["html"].render(self.report, TextView(), drawn)
            write_file(text.encode(), path, force=force)
            return
        check_suffix(path)
        rows = sheets.rows(
            self.report, self.photos, self.maps, alpha=alpha, colormap=colormap, crop=crop
        )
        pages = sheets.pages(rows)
        files = page_files(path, len(pages))
        for file in files:
            check_file(file, force=force)
        for file, page in zip(files, pages, strict=True):
            write_file(encoded(page, file), file, force=force)
