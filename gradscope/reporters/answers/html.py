"""Answers as a page for a browser: each cause once, with whom it concerns."""

from __future__ import annotations

from dataclasses import replace

from gradscope import pages
from gradscope.pages import Page, Part, items
from gradscope.records.answers import WhyReport
from gradscope.reporters.answers._lines import alike, answer_lines, conclusion, facts
from gradscope.reporters.header import notes
from gradscope.reporters.page_parts import error_parts, excerpt
from gradscope.reporters.text_view import TextView

suffix = ".html"


def render(report: WhyReport, view: TextView) -> str:
    """The full page; no width bears on it."""
    return pages.render(page(report, view))


def page(report: WhyReport, view: TextView) -> Page:
    """The error, if there was one, and the answers."""
    name, *further = facts(report)
    answers = [
        replace(one, excerpt=excerpt(group.first.location))
        for group in alike(report)
        for one in items(answer_lines(group))
    ]
    found = (*answers, *items(conclusion(report)))
    parts = [*error_parts(report.error), Part("answers", items=found)]
    return Page("why", name, [further], notes(report.run), parts, report.versions)
