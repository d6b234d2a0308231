"""A comparison as a page for a browser: the verdict, what was found, and the tables."""

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
    """The whole page, with every column that says something."""
    title = f"{plain(report.a.model)} against {plain(report.b.model)}"
    facts, notes = _lines.facts(report), _lines.notes(report)
    return pages.render(
        Page("diff", title, facts, list(notes), parts(report, view), report.versions)
    )


def parts(report: DiffReport, view: DiffView) -> list[Part]:
    """What stands below the header."""
    verdict = (*items(_lines.verdict(report)), *finding_items(report.findings))
    found = [Part("verdict", items=verdict)]
    for name, table in (("calls", _tables.calls), ("parameters", _tables.parameters)):
        made = table(report, view)
        if view.table in (None, name) and made.rows:
            found.append(table_part(made))
    if view.table != "findings":
        found.append(Part("terms", remarks=_tables.legend(report)))
    return found
