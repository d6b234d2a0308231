"""Writes maps to files; checks the paths before anything runs."""

from __future__ import annotations

import io
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from gradscope.charts.scales import COLORMAPS
from gradscope.commands._completing import one_of
from gradscope.commands._model import split_files
from gradscope.commands._options import flag, option
from gradscope.commands._write import STDOUT, check_output, write_output
from gradscope.errors import OptionError
from gradscope.images import files
from gradscope.images.files import PICTURES, USUAL, check_look, check_suffix, page_files

if TYPE_CHECKING:
    from PIL.Image import Image

    from gradscope.api.viewing import Saliency
    from gradscope.records.saliency import ImageAttribution

#: A model by its form: a spec, a YAML, a Python file.
_MODEL = re.compile(
    r"demo(:[\w-]+)?|.*\.ya?ml|.*\.py(:.*)?|[a-z_][\w.]*:[^:]+", re.IGNORECASE | re.DOTALL
)


@dataclass(frozen=True, slots=True)
class PictureOptions:
    """Look of the maps."""

    panel: ClassVar[str] = "Picture"

    alpha: Annotated[
        float | None,
        option("SHARE", "Opacity of the strongest colour over the photograph: above 0, up to 1."),
    ] = None
    colormap: Annotated[
        str,
        option(
            "NAME",
            f"Colours of unsigned maps: {', '.join(COLORMAPS)}. Signed ones go from blue to red.",
            complete=one_of(COLORMAPS),
        ),
    ] = USUAL
    crop: Annotated[
        bool, flag("--crop", "Draw only the part that the model's transform keeps.")
    ] = False

    def check(self) -> None:
        """Check the settings before anything runs.

        Raises:
            OptionError: the opacity is out of range, or the colour map is unknown.
        """
        check_look(self.alpha, self.colormap)


def split_pictures(words: list[str] | None, command: str) -> tuple[list[str], list[str]]:
    """Return the pictures and the overrides among a command's words.

    Raises:
        OptionError: a word is a MODEL, which belongs to ``-m``.
    """
    paths, overrides = split_files(words)
    for word in paths:
        known = Path(word).suffix.lower() in (*files.suffixes(), ".npy")
        if _MODEL.fullmatch(word) and not known and not Path(word).exists():
            others = [shlex.quote(path) for path in paths if path != word]
            model = " ".join(["-m", shlex.quote(word), *(others or ["IMAGE"])])
            raise OptionError(
                f"`{word}` is a model, not a picture",
                help=f"name the model with `-m`: `gradscope {command} {model}`",
            )
    return paths, overrides


@dataclass(frozen=True, slots=True)
class OutputFiles:
    """The files of pictures: one for all pictures, or one per picture in a folder."""

    file: Path | None = None
    folder: Path = Path()
    force: bool = False

    def check(self, names: Sequence[str], pages: int = 1) -> None:
        """Check that the known files can be written.

        Raises:
            OptionError: the file exists, or the folder does not exist or is not writable.
        """
        if self.file is not None:
            for file in page_files(self.file, pages):
                check_output(file, force=self.force)
            return
        for name in names:
            # The final name also has the class and the layer, and never replaces a file.
            check_output(self.folder / f"{name}.png", force=True)


def output_files(output: Path | None, *, force: bool) -> OutputFiles:
    """Return the files that ``-o`` selects: a picture by its suffix, or a folder.

    Raises:
        OptionError: the suffix is not one of a picture, or the folder does not exist.
    """
    if output is None:
        return OutputFiles(force=force)
    if output.is_dir():
        return OutputFiles(folder=output, force=force)
    if output == STDOUT:
        raise OptionError(
            "pictures are not written to standard output",
            help="`-f json` writes the report there; else name a file or a folder",
        )
    if not output.suffix:
        suffixes = ", ".join(PICTURES)
        raise OptionError(
            f"`{output}` is not a folder, and has no suffix that gives the format",
            help=f"create it: mkdir -p '{output}'; or use one of {suffixes}, .json",
        )
    check_suffix(output)
    return OutputFiles(file=output, force=force)


def free_file(folder: Path, stem: str, suffix: str, *, force: bool) -> Path:
    """Return the file of that name in the folder, with a number if the name is taken."""
    path, number = folder / f"{stem}{suffix}", 1
    while path.exists() and not force:
        number += 1
        path = folder / f"{stem}-{number}{suffix}"
    return path


def file_names(paths: Sequence[str]) -> list[str]:
    """Return a unique name for each picture's files, of letters, digits, dots and dashes.

    Pictures with equal names in several folders are numbered, and long names are cut.
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
    """Write overlays or contact sheets atomically; return the paths in the order of the
    pictures."""
    return _write(_pictures(found, to, names, looks), to)


def write_pages(pages: Sequence[Image], to: OutputFiles, name: str) -> list[Path]:
    """Write the pages of one sheet atomically; ``name`` is the file's name in a folder."""
    if to.file is not None:
        to.check((), len(pages))  # all of them, before the first is written
    return _write(_placed(pages, to, name), to)


def _write(pictures: Iterator[tuple[Path, Image]], to: OutputFiles) -> list[Path]:
    from gradscope.images.sheets import encoded

    written = []
    for path, picture in pictures:
        write_output(encoded(picture, path), path, force=to.force)
        written.append(path)
    return written


def saved_maps(found: Saliency, folder: Path, names: Sequence[str], *, force: bool) -> Saliency:
    """Write the raw maps to files, and return the report with their paths."""
    import numpy as np

    pictures = []
    for image, maps, name in zip(found.report.images, found.maps, names, strict=True):
        records = []
        for record, values in zip(image.maps, maps, strict=True):
            path = free_file(folder, f"{name}-{record.method}", ".npy", force=force)
            data = io.BytesIO()
            np.save(data, values.numpy())
            write_output(data.getvalue(), path, force=force)
            records.append(replace(record, file=str(path)))
        pictures.append(replace(image, maps=tuple(records)))
    return replace(found, report=replace(found.report, images=tuple(pictures)))


def _pictures(
    found: Saliency, to: OutputFiles, names: Sequence[str], looks: PictureOptions
) -> Iterator[tuple[Path, Image]]:
    from gradscope.images import sheets

    rows = sheets.rows(found.report, found.photos, found.maps, **asdict(looks))
    if to.file is not None:
        pages = sheets.pages(rows)
        to.check((), len(pages))  # all of them, before the first is written
        yield from _placed(pages, to, "")
        return
    for row, name, record in zip(rows, names, found.report.images, strict=True):
        yield from _placed(sheets.pages([row]), to, f"{name}-{_subject(record)}")


def _placed(pages: Sequence[Image], to: OutputFiles, name: str) -> Iterator[tuple[Path, Image]]:
    """Yield each page with its file."""
    if to.file is not None:
        yield from zip(page_files(to.file, len(pages)), pages, strict=True)
        return
    for i, page in enumerate(pages, 1):
        stem = name if i == 1 else f"{name}-page-{i}"
        yield free_file(to.folder, stem, ".png", force=to.force), page


def _subject(image: ImageAttribution) -> str:
    """Return the class of a picture's maps, with their layer if all have the same."""
    name = image.target_name
    words = [f"class-{image.target}" if name is None or name.isdecimal() else name]
    layers = {record.layer for record in image.maps}
    words += [layer for layer in layers if layer and len(layers) == 1]
    return "-".join(re.sub(r"[^\w.-]+", "-", word).strip("-.")[:40] for word in words)
