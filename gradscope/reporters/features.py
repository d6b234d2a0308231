"""Document of ``gradscope features``: a table for each kind of row, and overall figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from rich.text import Text

from gradscope.records.features import ChannelStats, FeaturesReport
from gradscope.reporters.document import Block, Document, Drawn, Remarks, formats
from gradscope.reporters.header import notes, run_facts
from gradscope.reporters.views import TextView
from gradscope.typeset.numbers import figure_words, number, plural, share
from gradscope.typeset.tables import KEEP, Heading, Table, of_columns
from gradscope.typeset.text import plain


def _tables(report: FeaturesReport) -> Iterator[Table]:
    """Yield the tables that have rows."""
    made = [_filters(report)]
    for layer in dict.fromkeys(one.layer for one in report.channels):
        made.append(_channels([one for one in report.channels if one.layer == layer]))
    made += [_excitations(report), _neighbors(report), _maximized(report)]
    for table in made:
        if table.rows:
            yield replace(table, remedy="use a wider terminal, or -f json")


def _filters(report: FeaturesReport) -> Table:
    rows = report.filters
    columns = [
        (Heading("filter"), [str(one.filter) for one in rows]),
        (Heading("norm"), [number(one.norm) for one in rows]),
        (Heading("nearest", keep=60), ["" if r.nearest is None else str(r.nearest) for r in rows]),
        (
            Heading("cosine", keep=60, beside="nearest"),
            ["" if one.cosine is None else number(one.cosine) for one in rows],
        ),
        (
            Heading("", False),
            ["dead" if r.dead else "near duplicate" if r.duplicate else "" for r in rows],
        ),
    ]
    return of_columns("filters", columns)


def _channels(rows: Sequence[ChannelStats]) -> Table:
    columns = [
        (Heading("channel"), [str(one.channel) for one in rows]),
        (Heading("mean abs"), [number(one.strength) for one in rows]),
        (Heading("min", keep=50), [number(one.min) for one in rows]),
        (Heading("max", keep=60), [number(one.max) for one in rows]),
        (Heading("not 0", keep=40), [share(round(one.active * 10**9), 10**9) for one in rows]),
        (Heading("", False), ["dead" if one.dead else "" for one in rows]),
    ]
    return of_columns(f"channels of {plain(rows[0].layer)}, the strongest first", columns)


def _excitations(report: FeaturesReport) -> Table:
    rows = [one for one in report.excitations if one.rank == 1]
    columns = [
        (Heading("layer", False, 40), [plain(one.layer) for one in rows]),
        (Heading("channel"), [str(one.channel) for one in rows]),
        (Heading("value"), [number(one.value) for one in rows]),
        (Heading("row", keep=50), ["" if one.row is None else str(one.row) for one in rows]),
        (Heading("column", keep=50), ["" if r.column is None else str(r.column) for r in rows]),
        (Heading("picture", False, KEEP, wraps=True), [plain(one.image) for one in rows]),
    ]
    return of_columns("the picture that excites each channel most", columns)


def _neighbors(report: FeaturesReport) -> Table:
    rows = report.neighbors
    several = len({one.query for one in rows}) > 1
    columns = [
        (Heading("of", False, 50), [plain(one.query) if several else "" for one in rows]),
        (Heading("rank"), [str(one.rank) for one in rows]),
        (Heading("distance"), [number(one.distance) for one in rows]),
        (Heading("class", False, 70), [plain(one.label or "") for one in rows]),
        (Heading("picture", False, KEEP, wraps=True), [plain(one.image) for one in rows]),
        (Heading("", False), ["same features" if one.duplicate else "" for one in rows]),
    ]
    return of_columns("neighbours, the nearest first", columns)


def _maximized(report: FeaturesReport) -> Table:
    rows = report.maximized
    columns = [
        (Heading("layer", False, 50), [plain(one.layer) for one in rows]),
        (Heading("channel"), [str(one.channel) for one in rows]),
        (Heading("start"), [number(one.start) for one in rows]),
        (Heading("reached"), [number(one.reached) for one in rows]),
    ]
    return of_columns("activation, before and after", columns)


#: Number of rows shown of a long table; JSON has all.
_ROWS, _SKIPPED = 20, 5


def document(
    report: FeaturesReport, view: TextView, format: str, written: Sequence[Path] = ()
) -> Document:
    """Overall figures, tables, skipped pictures, and the files ``written``."""
    blocks: list[Block] = []
    for table in _tables(report):
        rest = len(table.rows) - _ROWS
        if rest > 0:
            more = f"and {plural(rest, 'row')} more: -f json has all"
            table = replace(table, rows=table.rows[:_ROWS], legend=(*table.legend, more))
        blocks.append(table)
    if report.skipped:
        lines = [f"skipped {plural(len(report.skipped), 'picture')}:"]
        lines += [f"  {plain(s.image)}: {plain(s.reason)}" for s in report.skipped[:_SKIPPED]]
        if len(report.skipped) > _SKIPPED:
            lines.append(f"  and {len(report.skipped) - _SKIPPED} more: -f json has all")
        blocks.append(Remarks(lines, "skipped"))
    blocks.append(Drawn([Text(f"wrote {plain(str(path))}") for path in written]))
    facts = [run_facts(report.run), [_summary(report)]]
    return Document("features", facts, notes(report.run.notices), blocks, report.versions)


def _summary(report: FeaturesReport) -> str:
    """Return the layer, the pictures and the figures, in one line."""
    parts = [", ".join(map(plain, report.layers))]
    if report.images:
        parts.append(plural(report.images, "picture"))
    parts += map(plain, figure_words(report.figures))
    return " · ".join(part for part in parts if part)


FORMATS = formats(document, "json", "terminal")
