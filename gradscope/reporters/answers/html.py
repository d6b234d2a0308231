"""Answers as a page for a browser: each cause once, with whom it concerns."""

from __future__ import annotations

from gradscope import pages
from gradscope.pages import Page, Part, items
from gradscope.records.answers import WhyReport
from gradscope.reporters.answers._lines import alike, answer_lines, conclusion, facts
from gradscope.reporters.header import notes
from gradscope.reporters.page_parts import error_parts
from gradscope.reporters.text_view import TextView

suffix = ".html"


def render(report: WhyReport, view: TextView) -> str:
    """The whole page; no width bears on it."""
    name, *further = facts(report)
    return pages.render(
        Page("why", name, [further], notes(report.run), parts(report), report.versions)
    )


def parts(report: WhyReport) -> list[Part]:
    """What stands below the header."""
    lines = [line for group in alike(report) for line in answer_lines(group)]
    found = (*items(lines), *items(conclusion(report)))
    return [*error_parts(report.error), Part("answers", items=found)]
