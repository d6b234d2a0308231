"""Answers as text for people."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from gradscope.answers._lines import alike, answer_lines, conclusion, error_lines, facts
from gradscope.answers._view import AnswerView
from gradscope.records.answers import WhyReport
from gradscope.typeset.console import dimmed, printed, prose
from gradscope.typeset.text import join, plain

suffix = ".txt"


def render(report: WhyReport, view: AnswerView) -> str:
    """The answers at the view's width; without one nothing breaks."""
    blocks = [block for block in _blocks(report, view) if block]
    lines = [line for block in blocks for line in (Text(), *block)][1:]
    return printed(lines, width=view.width, color=view.color)


def _blocks(report: WhyReport, view: AnswerView) -> Iterator[list[Text]]:
    yield list(_header(report, view))
    yield [text for line in error_lines(report) for text in prose(line, view.width)]
    well: list[Text] = []
    for group in alike(report):
        block = [text for line in answer_lines(group) for text in prose(line, view.width)]
        if group.first.state == "healthy" and group.first.cause is None:
            well += block  # one line each: no empty lines between them
        else:
            yield block
    yield well
    yield [text for line in conclusion(report) for text in prose(line, view.width)]


def _header(report: WhyReport, view: AnswerView) -> Iterator[Text]:
    said = facts(report)
    for i, line in enumerate(join(said, view.width)):
        lead = said[0] if i == 0 and line.startswith(said[0]) else ""
        yield Text.assemble((lead, "bold"), line[len(lead) :])
    for notice in report.run.notices:
        yield from dimmed(f"note: {plain(notice)}", view.width)
