"""Maps as files: which pictures are written where, checked before anything runs."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from gradscope import images
from gradscope.commands._completing import one_of
from gradscope.commands._write import STDOUT, check_output, write_output
from gradscope.errors import OptionError, did_you_mean

if TYPE_CHECKING:
    from PIL.Image import Image

    from gradscope.api import Saliency
    from gradscope.records.saliency import ImageAttribution

FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP", ".pdf": "PDF"}


@dataclass(frozen=True, slots=True)
class PictureOptions:
    """How maps are drawn."""

    panel: ClassVar[str] = "Picture"

    alpha: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            help="How much the strongest colour hides of the photograph: above 0, up to 1.",
        ),
    ] = None
    colormap: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help=f"Colours of unsigned maps: {', '.join(images.COLORMAPS)}. Signed ones go from "
            "blue to red.",
            autocompletion=one_of(images.COLORMAPS),
        ),
    ] = "inferno"
    crop: Annotated[bool, typer.Option("--crop", help="Draw only the part that the model saw.")] = (
        False
    )

    def check(self) -> None:
        """Refuse what cannot be drawn, before anything runs.

        Raises:
            OptionError: a share that is none, or an unknown colour map.
        """
        if self.alpha is not None and not 0 < self.alpha <= 1:
            raise OptionError(f"`--alpha {self.alpha:g}` is no share", help="above 0, up to 1")
        if self.colormap not in images.COLORMAPS:
            raise OptionError(
                f"unknown colour map `{self.colormap}`",
                help=did_you_mean(self.colormap, images.COLORMAPS)
                or f"one of {', '.join(images.COLORMAPS)}",
            )


@dataclass(frozen=True, slots=True)
class OutputFiles:
    """Where pictures go: one file for everything, a folder, or None for the working directory."""

    file: Path | None = None
    folder: Path = Path()
    force: bool = False

    def check(self, names: Sequence[str], pages: int = 1) -> None:
        """Refuse what could not be written, as far as the names are known.

        Raises:
            OptionError: the one file exists, or a folder is not there or not writable.
        """
        if self.file is not None:
            for page in range(1, pages + 1):
                check_output(self.page(page), force=self.force)
            return
        for name in names:
            # The class and the layer are still to come, and what exists is not overwritten.
            check_output(self.folder / f"{name}.png", force=True)

    def free(self, name: str) -> Path:
        """The file of that name in the folder; numbered where it is taken and to stay."""
        path, number = self.folder / f"{name}.png", 1
        while path.exists() and not self.force:
            number += 1
            path = self.folder / f"{name}-{number}.png"
        return path

    def page(self, number: int) -> Path:
        """The file of a page, where one file's name stands for all."""
        assert self.file is not None
        return self.file if number == 1 else self.file.with_stem(f"{self.file.stem}-{number}")


def output_files(output: Path | None, *, force: bool) -> OutputFiles:
    """What ``-o`` asks for: a picture by its suffix, or a folder.

    Raises:
        OptionError: a suffix that no picture has, or a folder that is not there.
    """
    if output is None:
        return OutputFiles(force=force)
    if output.is_dir():
        return OutputFiles(folder=output, force=force)
    if output.suffix.lower() in FORMATS:
        return OutputFiles(file=output, force=force)
    if output == STDOUT:
        raise OptionError(
            "pictures are not written to standard output",
            help="`-f json` writes the report there; else name a file or a folder",
        )
    if not output.suffix:
        raise OptionError(
            f"`{output}` is no folder, and has no suffix to tell the format",
            help=f"create it: mkdir -p '{output}'; or use one of {', '.join(FORMATS)}, .json",
        )
    raise OptionError(
        f"the suffix `{output.suffix}` of `{output}` is no picture's",
        help=f"use one of {', '.join(FORMATS)}, .json for the report, or a folder",
    )


def file_names(paths: Sequence[str]) -> list[str]:
    """A name for each picture's files: letters, digits, dots and dashes, no two alike.

    Pictures of one name in several folders are numbered, and overlong names are cut.
    """
    taken: set[str] = set()
    found = []
    for path in paths:
        plain = re.sub(r"[^\w.-]+", "-", Path(path).stem).strip("-.") or "picture"
        name = first = plain.encode()[:160].decode(errors="ignore")
        number = 1
        while name.casefold() in taken:
            number += 1
            name = f"{first}-{number}"
        taken.add(name.casefold())
        found.append(name)
    return found


def write_pictures(
    found: Saliency, to: OutputFiles, names: Sequence[str], looks: PictureOptions
) -> list[Path]:
    """Overlays or contact sheets, written whole; the paths, in the order of the pictures."""
    written = []
    for path, picture in _pictures(found, to, names, looks):
        write_output(_encoded(picture, path), path, force=to.force)
        written.append(path)
    return written


def write_pages(pages: Sequence[Image], to: OutputFiles, name: str) -> list[Path]:
    """The pages of one sheet, written whole; ``name`` is the file's in a folder."""
    if to.file is not None:
        to.check((), len(pages))  # all of them, before the first is written
    written = []
    for path, page in _placed(pages, to, name):
        write_output(_encoded(page, path), path, force=to.force)
        written.append(path)
    return written


def check_maps(folder: Path, names: Sequence[str], methods: Sequence[str], *, force: bool) -> None:
    """Refuse raw maps that could not be written, before anything runs.

    Raises:
        OptionError: a file that exists, or cannot be written.
    """
    for name in names:
        for method in methods:
            check_output(_map_file(folder, name, method), force=force)


def saved_maps(found: Saliency, folder: Path, names: Sequence[str], *, force: bool) -> Saliency:
    """The raw maps as files, and the report that names them."""
    import numpy as np

    methods_of = [[record.method for record in image.maps] for image in found.report.images]
    for name, methods in zip(names, methods_of, strict=True):
        check_maps(folder, [name], methods, force=force)
    pictures = []
    for image, maps, name in zip(found.report.images, found.maps, names, strict=True):
        records = []
        for record, values in zip(image.maps, maps, strict=True):
            path = _map_file(folder, name, record.method)
            data = io.BytesIO()
            np.save(data, values.numpy())
            write_output(data.getvalue(), path, force=force)
            records.append(replace(record, file=str(path)))
        pictures.append(replace(image, maps=tuple(records)))
    return replace(found, report=replace(found.report, images=tuple(pictures)))


def _pictures(
    found: Saliency, to: OutputFiles, names: Sequence[str], looks: PictureOptions
) -> Iterator[tuple[Path, Image]]:
    photos = [images.cropped(photo) if looks.crop else photo for photo in found.photos]
    rows = [
        (
            photo,
            [_heat(record, values, looks) for record, values in zip(image.maps, maps, strict=True)],
        )
        for photo, image, maps in zip(photos, found.report.images, found.maps, strict=True)
    ]
    if to.file is not None:
        single = len(rows) == 1 and len(rows[0][1]) == 1
        pages = [images.overlay(rows[0][0], rows[0][1][0])] if single else images.sheets(rows)
        to.check((), len(pages))  # all of them, before the first is written
        yield from _placed(pages, to, "")
        return
    for (photo, heats), name, record in zip(rows, names, found.report.images, strict=True):
        name = f"{name}-{_subject(record)}"
        pages = (
            [images.overlay(photo, heats[0])]
            if len(heats) == 1
            else images.sheets([(photo, heats)])
        )
        yield from _placed(pages, to, name)


def _placed(pages: Sequence[Image], to: OutputFiles, name: str) -> Iterator[tuple[Path, Image]]:
    """Each page with its file."""
    for i, page in enumerate(pages, 1):
        if to.file is not None:
            yield to.page(i), page
        else:
            yield to.free(name if i == 1 else f"{name}-page-{i}"), page


def _subject(image: ImageAttribution) -> str:
    """What a picture's maps are of: the class, and the layer where all of them are of one."""
    name = image.target_name
    words = [f"class-{image.target}" if name is None or name.isdecimal() else name]
    layers = {record.layer for record in image.maps}
    words += [layer for layer in layers if layer and len(layers) == 1]
    return "-".join(re.sub(r"[^\w.-]+", "-", word).strip("-.")[:40] for word in words)


def _heat(record: Any, values: Any, looks: PictureOptions) -> images.HeatMap:
    remarks = (record.note,) if record.note else ()
    what = record.options.get("class")
    name = record.method if what is None else f"{record.method} {what}"
    return images.HeatMap(
        *(name, values.numpy(), record.signed, remarks), looks.alpha, looks.colormap
    )


def _encoded(picture: Image, path: Path) -> bytes:
    data = io.BytesIO()
    picture.save(data, FORMATS[path.suffix.lower()])
    return data.getvalue()


def _map_file(folder: Path, name: str, method: str) -> Path:
    return folder / f"{name}-{method}.npy"
