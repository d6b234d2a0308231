"""A saliency report as text for people."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path

from rich.text import Text

from gradscope.records.saliency import Attribution, ImageAttribution, SaliencyReport
from gradscope.typeset.console import dimmed, printed, table_lines
from gradscope.typeset.numbers import number, share
from gradscope.typeset.tables import KEEP, Cell, Heading, Table
from gradscope.typeset.text import join, plain


def text(report: SaliencyReport, written: Iterable[Path], *, width: int | None, color: bool) -> str:
    """The classes that the model saw and the maps that were made, picture by picture."""
    return printed(_lines(report, list(written), width), width=width, color=color)


def _lines(report: SaliencyReport, written: list[Path], width: int | None) -> Iterator[Text]:
    run = report.run
    facts = [plain(run.model) or "model", run.device, run.dtype, run.mode, f"seed {run.seed}"]
    for line in join(facts, width):
        yield Text(line)
    for notice in run.notices:
        yield from dimmed(f"note: {plain(notice)}", width)
    for image in report.images:
        yield Text()
        yield from table_lines(_classes(image), width)
        yield Text()
        yield from table_lines(_maps(image), width)
        for record in image.maps:
            if record.note:
                yield from dimmed(f"{_method(record)}: {plain(record.note)}", width)
    if written:
        yield Text()
        yield from (Text(f"wrote {plain(str(path))}") for path in written)


def _classes(image: ImageAttribution) -> Table:
    rows = []
    for one in image.top:
        explained = "explained" if one.id == image.target else ""
        name = _class(one.id, one.name)
        rows.append((name, number(one.score), share_of(one.probability), explained))
    if image.target not in {one.id for one in image.top}:
        name = _class(image.target, image.target_name)
        rows.append((name, number(image.score), "", "explained"))
    headings = (Heading("class", False), Heading("logit"), Heading("share"), Heading("", False))
    cells = tuple(tuple(Cell(cell) for cell in row) for row in rows)
    path = Path(image.path)
    # One from elsewhere, as the bundled digits are, by its name alone.
    return Table(plain(path.name if path.is_absolute() else image.path), headings, cells)


def _class(id: int, name: str | None) -> str:
    return str(id) if name is None or name == str(id) else f"{id} {plain(name)}"


def share_of(probability: float) -> str:
    """A softmax share in percent."""
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
    kept = [column for column in columns if any(column[1])]
    cells = zip(*(texts for _, texts in kept), strict=True)
    return Table(
        "maps",
        tuple(heading for heading, _ in kept),
        tuple(tuple(Cell(cell) for cell in row) for row in cells),
        remedy="use a wider terminal, or -f json",
    )


def _method(record: Attribution) -> str:
    other = record.options.get("class")
    return record.method if other is None else f"{record.method} {other}"


def _shown(value: object) -> bool:
    return isinstance(value, int | float | str)


def _check(value: object) -> str:
    if isinstance(value, int | float):
        return number(float(value))
    return plain(value) if isinstance(value, str) else ""


def methods(*, width: int | None, color: bool) -> str:
    """Every method with what it shows, its options and its paper."""
    from gradscope.saliency import _options

    rows = []
    for name in _options.names():
        file = _options.method(name)
        said = (file.__doc__ or "").strip().splitlines()[0].rstrip(".")
        options = ", ".join(f"{p.name}={p.default}" for p in _options.options_of(name).values())
        rows.append((name, said.partition(": ")[2] or said, options, file.paper))
    headings = (
        Heading("method", False),
        Heading("what the map shows", False, 60),
        Heading("options", False, 90),
        Heading("paper", False, 50),
    )
    cells = tuple(tuple(Cell(plain(cell)) for cell in row) for row in rows)
    return printed(table_lines(Table("methods", headings, cells), width), width=width, color=color)
