"""A spike as text for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.text import Text

from gradscope.records.spike import SpikeReport
from gradscope.reporters.header import fact_lines
from gradscope.reporters.spike._parts import end, tables, title, verdict
from gradscope.reporters.text_view import TextView
from gradscope.typeset.console import paragraphs, printed, stacked, table_lines

suffix = ".txt"


def render(report: SpikeReport, view: TextView) -> str:
    """The verdict first, then its samples and the steps before."""
    return printed(stacked(_blocks(report, view.width)), width=view.width, color=view.color)


def _blocks(report: SpikeReport, width: int | None) -> Iterator[Iterable[Text]]:
    yield fact_lines([title(report)], width)
    yield paragraphs(verdict(report), width)
    for table in tables(report):
        yield table_lines(table, width)
    yield paragraphs(end(report), width)
