"""A spike as a page for a browser."""

from __future__ import annotations

from gradscope import pages
from gradscope.pages import Page, Part, items, table_part
from gradscope.records.spike import SpikeReport
from gradscope.reporters.spike._parts import end, tables, title, verdict
from gradscope.reporters.text_view import TextView

suffix = ".html"


def render(report: SpikeReport, view: TextView) -> str:
    """The full page; no width bears on it."""
    return pages.render(page(report, view))


def page(report: SpikeReport, view: TextView) -> Page:
    """The verdict, the samples and the steps before."""
    name, *further = title(report)
    parts = [
        Part("verdict", items=items(verdict(report))),
        *map(table_part, tables(report)),
        Part("optimizer", items=items(end(report))),
    ]
    return Page("spike", name, [further], (), parts)
