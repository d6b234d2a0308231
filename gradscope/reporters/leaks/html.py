"""Leaks as a page for a browser: each axis once, and the dependency maps."""

from __future__ import annotations

from dataclasses import replace

from gradscope import pages
from gradscope.pages import Page, Part, items
from gradscope.records.leaks import AxisResult, LeaksReport
from gradscope.reporters.header import notes, run_facts
from gradscope.reporters.leaks._lines import axis_lines, conclusion, in_order
from gradscope.reporters.leaks.charts.dependencies import maps
from gradscope.reporters.page_parts import error_parts, excerpt
from gradscope.reporters.text_view import TextView

suffix = ".html"


def render(report: LeaksReport, view: TextView) -> str:
    """The full page; no width bears on it."""
    return pages.render(page(report, view))


def page(report: LeaksReport, view: TextView) -> Page:
    """The error, if there was one, the axes, and the maps."""
    name, *further = run_facts(report.run)
    found = [
        replace(item, excerpt=excerpt(_place(one)))
        for one in in_order(report)
        for item in items(axis_lines(one))
    ]
    parts = [
        *error_parts(report.error),
        Part("axes", items=(*found, *items(conclusion(report)))),
    ]
    if report.maps:
        parts.append(Part("dependencies", maps=maps(report)))
    return Page("leaks", name, [further], notes(report.run), parts, report.versions)


def _place(one: AxisResult) -> str | None:
    return None if one.source is None else f"{one.source.file}:{one.source.line}"
