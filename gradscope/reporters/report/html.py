"""A report as a page for a browser: findings, charts over depth, and the terminal's tables."""

from __future__ import annotations

from collections.abc import Iterator

from gradscope import pages
from gradscope.pages import Page, Part, table_part
from gradscope.records.report import CheckedModel, CheckReport, Report
from gradscope.reporters.header import notes
from gradscope.reporters.page_parts import error_parts, finding_items, findings_part, said
from gradscope.reporters.report import _chains, _checked, _histograms, _precision, _summary
from gradscope.reporters.report._view import View
from gradscope.reporters.report.charts.depth import panels
from gradscope.reporters.report.charts.modules import modules
from gradscope.reporters.report.tables.accumulation import verdict
from gradscope.reporters.report.tables.table_order import NO_CALLS, lacks_calls, tables
from gradscope.typeset.console import Line

suffix = ".html"


def render(report: Report, view: View) -> str:
    """The page, with every column of the tables that the view chooses."""
    return pages.render(page(report, view))


def page(report: Report, view: View) -> Page:
    """What was run, and all its parts."""
    first, *further = _summary.facts(report)
    facts, parts = [first[1:], *further], list(_parts(report, view))
    return Page("inspect", first[0], facts, notes(report.run), parts, report.versions)


def render_check(check: CheckReport, view: View) -> str:
    """The sum first, then each model."""
    made = [part for model in check.models for part in _model(model, view)]
    remarks = tuple(_checked.stale(check))
    last = [Part("baseline", remarks=remarks)] if remarks else []
    title = _checked.title(check.models[0].run) if len(check.models) == 1 else "models"
    return pages.render(
        Page("check", title, ([_checked.summary(check)],), (), [*made, *last], check.versions)
    )


def _parts(report: Report, view: View) -> Iterator[Part]:
    yield from error_parts(report.error)
    if report.findings:
        yield findings_part(report.findings)
    elif view.table in (None, "findings") and report.error is None:
        yield Part("findings", items=said(Line("no findings", tone="good")))
    if view.table is None:
        drawn = panels(report)
        full = modules(report)
        if full is not None:
            yield Part("modules", full.colors, blocks=full)
        if drawn:
            yield Part("over depth", "calls in their order, of the innermost modules", panels=drawn)
    yield from map(table_part, _histograms.tables(report.histograms))
    if lacks_calls(report, view):
        yield Part("calls", remarks=(NO_CALLS,))
    yield from map(table_part, tables(report, view))
    for chain in report.chains:
        lines = _chains.lines(chain)
        text, remarks = "\n".join(_chains.unbroken(lines)), tuple(_chains.legend(lines))
        yield Part(_chains.title(chain), text=text, remarks=remarks)
    proofs = said(_summary.verified(report), verdict(report))
    yield Part("totals", items=proofs, remarks=(" · ".join(_summary.totals(report)),))


def _model(model: CheckedModel, view: View) -> Iterator[Part]:
    line = _checked.verdict(model)
    yield Part(
        line.lead.removesuffix(":"),
        line.text,
        items=(
            *(item for part in error_parts(model.error) for item in part.items),
            *finding_items(model.findings),
        ),
        remarks=tuple(_checked.notes(model)),
    )
    for table in _precision.tables(model.precision, view.top):
        yield (
            table_part(table)
            if table.rows
            else Part(table.title, table.caption, remarks=table.legend)
        )
    if model.precision:
        yield Part("terms", remarks=_precision.LEGEND)
