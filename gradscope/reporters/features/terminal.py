"""The result of ``gradscope features`` as text for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from rich.text import Text

from gradscope.records.features import FeaturesReport
from gradscope.reporters.features._tables import tables
from gradscope.reporters.header import header, run_facts
from gradscope.reporters.text_view import TextView
from gradscope.typeset.console import dimmed, printed, stacked, table_lines
from gradscope.typeset.figures import figure_words
from gradscope.typeset.numbers import plural
from gradscope.typeset.text import plain

suffix = ".txt"
#: Of a long table so many rows are shown; JSON has all.
ROWS = 20
_SKIPPED = 5


def render(report: FeaturesReport, view: TextView, written: Sequence[Path] = ()) -> str:
    """Overall figures, tables, skipped pictures, and the files ``written``."""
    blocks = _blocks(report, written, view.width)
    return printed(stacked(blocks), width=view.width, color=view.color)


def _blocks(
    report: FeaturesReport, written: Sequence[Path], width: int | None
) -> Iterator[Iterable[Text]]:
    yield header(report.run, [run_facts(report.run), [_summary(report)]], width)
    for table in tables(report):
        rest = len(table.rows) - ROWS
        if rest > 0:
            more = f"and {plural(rest, 'row')} more: -f json has all"
            table = replace(table, rows=table.rows[:ROWS], legend=(*table.legend, more))
        yield table_lines(table, width)
    if report.skipped:
        lines = [f"skipped {plural(len(report.skipped), 'picture')}:"]
        lines += [f"  {plain(s.image)}: {plain(s.reason)}" for s in report.skipped[:_SKIPPED]]
        if len(report.skipped) > _SKIPPED:
            lines.append(f"  and {len(report.skipped) - _SKIPPED} more: -f json has all")
        yield (text for line in lines for text in dimmed(line, width))
    yield [Text(f"wrote {plain(str(path))}") for path in written]


def _summary(report: FeaturesReport) -> str:
    """The layer, the pictures and the figures, in one line."""
    parts = [", ".join(map(plain, report.layers))]
    if report.images:
        parts.append(plural(report.images, "picture"))
    parts += map(plain, figure_words(report.figures))
    return " · ".join(part for part in parts if part)
