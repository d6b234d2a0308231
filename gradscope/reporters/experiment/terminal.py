"""An experiment as text for people: the verdict, what the rules found, and the arms."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.text import Text

from gradscope.records.experiment import ExperimentReport
from gradscope.reporters import finding_lines
from gradscope.reporters.experiment._lines import facts, notes, table, verdict
from gradscope.reporters.header import fact_lines
from gradscope.reporters.text_view import TextView
from gradscope.typeset.console import dimmed, paragraphs, printed, stacked, table_lines

suffix = ".txt"


def render(report: ExperimentReport, view: TextView) -> str:
    """The text at the view's width; without one nothing breaks."""
    return printed(stacked(_blocks(report, view.width)), width=view.width, color=view.color)


def _blocks(report: ExperimentReport, width: int | None) -> Iterator[Iterable[Text]]:
    yield [
        *fact_lines([facts(report)], width),
        *(line for note in notes(report) for line in dimmed(note, width)),
    ]
    yield paragraphs(verdict(report), width)
    yield paragraphs(finding_lines.every_line(report.findings), width)
    arms = table(report)
    if arms is not None:
        yield table_lines(arms, width)
