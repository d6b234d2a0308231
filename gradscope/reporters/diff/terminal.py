"""A comparison as text for people: the verdict, findings, then the tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.text import Text

from gradscope.records.diff import DiffReport
from gradscope.reporters import finding_lines
from gradscope.reporters.diff import _lines, _tables
from gradscope.reporters.diff._view import DiffView
from gradscope.reporters.header import fact_lines
from gradscope.typeset.console import dimmed, paragraphs, printed, stacked, table_lines

suffix = ".txt"


def render(report: DiffReport, view: DiffView) -> str:
    """The comparison at the view's width; without one nothing is hidden and nothing breaks."""
    return printed(stacked(_blocks(report, view)), width=view.width, color=view.color)


def _blocks(report: DiffReport, view: DiffView) -> Iterator[Iterable[Text]]:
    yield [
        *fact_lines(_lines.facts(report), view.width),
        *(line for note in _lines.notes(report) for line in dimmed(note, view.width)),
    ]
    yield paragraphs(_lines.verdict(report), view.width)
    yield paragraphs(finding_lines.every_line(report.findings), view.width)
    for table in _tables.shown(report, view):
        yield table_lines(table, view.width)
    if view.table != "findings":
        yield [line for remark in _tables.legend(report) for line in dimmed(remark, view.width)]
