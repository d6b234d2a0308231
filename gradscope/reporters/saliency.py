"""A saliency report: each picture with its maps, classes and checks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from rich.text import Text

from gradscope.pages import Part, Picture
from gradscope.records.saliency import Attribution, ImageAttribution, SaliencyReport
from gradscope.reporters.document import Block, Document, Drawn, formats
from gradscope.reporters.header import notes, run_facts
from gradscope.reporters.views import TextView
from gradscope.typeset.numbers import number, share
from gradscope.typeset.tables import KEEP, Cell, Heading, Table, of_columns
from gradscope.typeset.text import plain

#: Choices of pixels whose mean is the score of a segmentation; any other choice is a single pixel.
_SEVERAL = ("predicted", "all")


def name(image: ImageAttribution) -> str:
    """Return the picture's path; for a picture without a file, such as a bundled digit, its
    name."""
    path = Path(image.path)
    return plain(path.name if path.is_absolute() else image.path)


def explained(image: ImageAttribution) -> str:
    """Return the class that is explained, by number and name."""
    return _class(image.target, image.target_name)


def classes(image: ImageAttribution) -> Table:
    """Return the table of the best classes and the explained one."""
    rows = []
    for one in image.top:
        mark = "explained" if one.id == image.target else ""
        share = one.probability if image.pixels is None else one.pixels
        shown = "" if share is None else _share(share)
        rows.append((_class(one.id, one.name), number(one.score), shown, mark))
    if image.target not in {one.id for one in image.top}:
        rows.append((explained(image), number(image.score), "", "explained"))
    logit, part = ("logit", "share") if image.pixels is None else ("mean logit", "of the pixels")
    if image.pixels not in (None, *_SEVERAL):
        logit = f"logit at {image.pixels}"
    headings = (Heading("class", False), Heading(logit), Heading(part), Heading("", False))
    cells = tuple(tuple(Cell(cell) for cell in row) for row in rows)
    return Table(name(image), headings, cells)


def maps(image: ImageAttribution) -> Table:
    """Return a row for each map, with its checks."""
    columns = [
        (Heading("method", False), [method(record) for record in image.maps]),
        (Heading("layer", False, 50), [plain(record.layer or "") for record in image.maps]),
        (Heading("min", keep=60), [number(record.min) for record in image.maps]),
        (Heading("max", keep=60), [number(record.max) for record in image.maps]),
    ]
    keys = list(dict.fromkeys(k for r in image.maps for k, v in r.checks.items() if _shown(v)))
    for key in keys:
        texts = [_check(record.checks.get(key)) for record in image.maps]
        columns.append((Heading(key.replace("_", " "), keep=40), texts))
    columns.append((Heading("file", False, KEEP), [plain(r.file or "") for r in image.maps]))
    return replace(of_columns("maps", columns), remedy="use a wider terminal, or -f json")


def _notes(image: ImageAttribution) -> list[str]:
    """Yield the reasons not to trust a map."""
    return [f"{method(one)}: {plain(one.note)}" for one in image.maps if one.note]


def method(record: Attribution) -> str:
    """Return the method of a map, with the other class for a contrast."""
    other = record.options.get("class")
    return record.method if other is None else f"{record.method} {other}"


def _class(id: int, name: str | None) -> str:
    return str(id) if name is None or name == str(id) else f"{id} {plain(name)}"


def _share(probability: float) -> str:
    if not math.isfinite(probability):
        return number(probability)
    return share(round(probability * 10**9), 10**9)


def _shown(value: object) -> bool:
    return isinstance(value, int | float | str)


def _check(value: object) -> str:
    if isinstance(value, int | float):
        return number(float(value))
    return plain(value) if isinstance(value, str) else ""


def document(
    report: SaliencyReport, view: TextView, format: str, files: Sequence[Any] = ()
) -> Document:
    """Return the document of the attributions: the run, and the parts of each picture.

    For a page, ``files`` has the PNG files of each image, one for each map; for a text, the paths
    of the written files.
    """
    paged = format == "html"
    blocks: list[Block] = list(filter(None, [report.error] if paged else []))
    for image, drawn in zip_longest(report.images, files if paged else (), fillvalue=()):
        assert isinstance(image, ImageAttribution)
        if paged:
            blocks += _parts(image, drawn)
        else:
            blocks += [classes(image), replace(maps(image), legend=tuple(_notes(image)))]
    if not paged:
        blocks.append(Drawn([Text(f"wrote {plain(str(path))}") for path in files]))
    facts = [run_facts(report.run)]
    return Document("saliency", facts, notes(report.run.notices), blocks, report.versions)


def _parts(image: ImageAttribution, files: Sequence[bytes]) -> Iterator[Part]:
    title, target = name(image), explained(image)
    # Every table of a page has its own title, and every column a head.
    of_maps, of_classes = replace(maps(image), title=f"maps of {title}"), classes(image)
    role = Heading("role", right=False)
    of_classes = replace(of_classes, columns=(*of_classes.columns[:-1], role))
    pictures = tuple(
        Picture(file, f"{method(one)} of class {target} over {title}", method(one))
        for one, file in zip(image.maps, files, strict=False)
    )
    remarks = tuple(_notes(image))
    caption = f"why class {target}"
    yield Part(of_maps.title, caption, pictures=pictures, table=of_maps, remarks=remarks)
    yield Part(f"classes of {title}", table=replace(of_classes, title=f"classes of {title}"))


FORMATS = formats(document, "html", "json", "terminal")
