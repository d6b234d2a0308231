"""A saliency report as text for people."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from rich.text import Text

from gradscope.records.saliency import Attribution, ImageAttribution, SaliencyReport
from gradscope.reporters.header import header, run_facts
from gradscope.reporters.text_view import TextView
from gradscope.typeset.console import dimmed, printed, stacked, table_lines
from gradscope.typeset.numbers import number, share
from gradscope.typeset.tables import KEEP, Cell, Heading, Table, of_columns
from gradscope.typeset.text import plain

suffix = ".txt"

#: Pixels of a segmentation whose mean is the score; else it is a single one.
_SEVERAL = ("predicted", "all")


def render(report: SaliencyReport, view: TextView, written: Sequence[Path] = ()) -> str:
    """The classes that the model saw and the maps that were made, picture by picture.

    ``written`` are the files that hold the pictures.
    """
    blocks = _blocks(report, written, view.width)
    return printed(stacked(blocks), width=view.width, color=view.color)


def _blocks(
    report: SaliencyReport, written: Sequence[Path], width: int | None
) -> Iterator[Iterable[Text]]:
    yield header(report.run, [run_facts(report.run)], width)
    for image in report.images:
        yield table_lines(_classes(image), width)
        notes = [f"{_method(one)}: {plain(one.note)}" for one in image.maps if one.note]
        yield chain(table_lines(_maps(image), width), *(dimmed(note, width) for note in notes))
    yield [Text(f"wrote {plain(str(path))}") for path in written]


def _classes(image: ImageAttribution) -> Table:
    rows = []
    for one in image.top:
        explained = "explained" if one.id == image.target else ""
        name = _class(one.id, one.name)
        share = one.probability if image.pixels is None else one.pixels
        rows.append((name, number(one.score), "" if share is None else _share(share), explained))
    if image.target not in {one.id for one in image.top}:
        name = _class(image.target, image.target_name)
        rows.append((name, number(image.score), "", "explained"))
    logit, part = ("logit", "share") if image.pixels is None else ("mean logit", "of the pixels")
    if image.pixels not in (None, *_SEVERAL):
        logit = f"logit at {image.pixels}"
    headings = (Heading("class", False), Heading(logit), Heading(part), Heading("", False))
    cells = tuple(tuple(Cell(cell) for cell in row) for row in rows)
    path = Path(image.path)
    # One from elsewhere, as the bundled digits are, by its name alone.
    return Table(plain(path.name if path.is_absolute() else image.path), headings, cells)


def _class(id: int, name: str | None) -> str:
    return str(id) if name is None or name == str(id) else f"{id} {plain(name)}"


def _share(probability: float) -> str:
    if not math.isfinite(probability):
        return number(probability)
    return share(round(probability * 10**9), 10**9)


def _maps(image: ImageAttribution) -> Table:
    columns = [
        (Heading("method", False), [_method(record) for record in image.maps]),
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


def _method(record: Attribution) -> str:
    other = record.options.get("class")
    return record.method if other is None else f"{record.method} {other}"


def _shown(value: object) -> bool:
    return isinstance(value, int | float | str)


def _check(value: object) -> str:
    if isinstance(value, int | float):
        return number(float(value))
    return plain(value) if isinstance(value, str) else ""
