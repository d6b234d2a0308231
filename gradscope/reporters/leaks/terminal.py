"""Leaks as text for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.text import Text

from gradscope.records.leaks import LeaksReport
from gradscope.reporters.errors import error_lines
from gradscope.reporters.header import header, run_facts
from gradscope.reporters.leaks._blocks import map_lines
from gradscope.reporters.leaks._lines import axis_lines, conclusion, in_order
from gradscope.reporters.text_view import TextView
from gradscope.typeset.console import paragraphs, printed, stacked

suffix = ".txt"


def render(report: LeaksReport, view: TextView) -> str:
    """Each axis, the worst first; without a width nothing breaks."""
    return printed(stacked(_blocks(report, view.width)), width=view.width, color=view.color)


def _blocks(report: LeaksReport, width: int | None) -> Iterator[Iterable[Text]]:
    yield header(report.run, [run_facts(report.run)], width)
    yield paragraphs(error_lines(report.error), width)
    rest: list[Text] = []
    for one in in_order(report):
        block = paragraphs(axis_lines(one), width)
        if one.verdict == "leaks":
            yield block
        else:
            rest += block
    yield rest
    for one_map in report.maps:
        yield map_lines(one_map, width)
    yield paragraphs(conclusion(report), width)
