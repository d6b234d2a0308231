"""Answers as text for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.text import Text

from gradscope.records.answers import WhyReport
from gradscope.reporters.answers._lines import alike, answer_lines, conclusion, facts, is_well
from gradscope.reporters.errors import error_lines
from gradscope.reporters.header import header
from gradscope.reporters.text_view import TextView
from gradscope.typeset.console import paragraphs, printed, stacked

suffix = ".txt"


def render(report: WhyReport, view: TextView) -> str:
    """The answers at the view's width; without one nothing breaks."""
    return printed(stacked(_blocks(report, view.width)), width=view.width, color=view.color)


def _blocks(report: WhyReport, width: int | None) -> Iterator[Iterable[Text]]:
    yield header(report.run, [facts(report)], width)
    yield paragraphs(error_lines(report.error), width)
    well: list[Text] = []
    for group in alike(report):
        block = paragraphs(answer_lines(group), width)
        if is_well(group.first) and group.first.cause is None:
            well += block  # one line each: no empty lines between them
        else:
            yield block
    yield well
    yield paragraphs(conclusion(report), width)
