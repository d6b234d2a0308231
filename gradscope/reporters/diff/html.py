"""A comparison as a page for a browser: the verdict, findings and tables."""

from __future__ import annotations

from gradscope import pages
from gradscope.pages import Page, Part, items, table_part
from gradscope.records.diff import DiffReport
from gradscope.reporters.diff import _lines, _tables
from gradscope.reporters.diff._view import DiffView
from gradscope.reporters.page_parts import finding_items
from gradscope.typeset.text import plain

suffix = ".html"


def render(report: DiffReport, view: DiffView) -> str:
    """The full page, with every column that says something."""
    return pages.render(page(report, view))


def page(report: DiffReport, view: DiffView) -> Page:
    """The verdict with findings, and the tables."""
    verdict = (*items(_lines.verdict(report)), *finding_items(report.findings))
    parts = [Part("verdict", items=verdict)]
    if view.panels and view.table is None:
        parts.append(Part("over steps", "A and B, overlaid", panels=view.panels))
    if view.maps and view.table is None:
        parts.append(Part("layers over steps", "A beside B, on one scale", maps=view.maps))
    parts += [table_part(table) for table in _tables.shown(report, view)]
    if view.table != "findings":
        parts.append(Part("terms", remarks=_tables.legend(report)))
    title = f"{plain(report.a.model)} against {plain(report.b.model)}"
    facts, notes = _lines.facts(report), _lines.notes(report)
    return Page("diff", title, facts, notes, parts, report.versions)
