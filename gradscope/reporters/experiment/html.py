"""An experiment as a page for a browser: the verdict, the losses, and the arms."""

from __future__ import annotations

from gradscope import pages
from gradscope.pages import Page, Part, items, table_part
from gradscope.records.experiment import ExperimentReport
from gradscope.reporters.experiment._lines import facts, notes, table, verdict
from gradscope.reporters.experiment.charts.losses import panels
from gradscope.reporters.page_parts import finding_items
from gradscope.reporters.text_view import TextView

suffix = ".html"


def render(report: ExperimentReport, view: TextView) -> str:
    """The full page; no width bears on it."""
    return pages.render(page(report, view))


def page(report: ExperimentReport, view: TextView) -> Page:
    """The verdict with what the rules found, the losses, and the table."""
    name, *further = facts(report)
    found = (*items(verdict(report)), *finding_items(report.findings))
    parts = [Part("verdict", items=found)]
    charts = panels(report)
    if charts:
        parts.append(Part("losses", panels=charts))
    arms = table(report)
    if arms is not None:
        parts.append(table_part(arms))
    return Page("experiment", name, [further], notes(report), parts, report.versions)
