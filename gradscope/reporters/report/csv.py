"""A report as CSV: a row for each call, direction and path, each parameter, or each finding."""

from __future__ import annotations

from gradscope.records.report import CheckReport, Finding, Report
from gradscope.reporters.check import alone, title
from gradscope.reporters.finding_lines import ordered
from gradscope.reporters.tables import report_tables
from gradscope.reporters.tables.columns import Scalar
from gradscope.reporters.views import View
from gradscope.typeset.text import csv_table

suffix = ".csv"

FINDINGS = (
    *("model", "severity", "code", "rule", "name", "call", "message"),
    *("value", "threshold", "source", "cause", "location", "advice", "known"),
)


def render(report: Report, view: View) -> str:
    """One table: the calls, unless the view asks for the parameters or the findings."""
    if view.table == "findings":
        return render_check(alone(report), view)
    return csv_table(*report_tables.records(report, view))


def render_check(check: CheckReport, view: View) -> str:
    """A row for each finding; a run that failed is a row without a code."""
    rows: list[list[Scalar]] = []
    for model in check.models:
        whose = title(model.run)
        error = model.error
        if error is not None:
            message = f"{error.exception or error.kind}: {error.message}"
            row: list[Scalar] = [whose, "error", "", error.kind, error.name, error.call, message]
            rows.append([*row, None, None, None, None, error.location, error.advice, False])
        for known, findings in ((False, model.findings), (True, model.known)):
            rows += [[whose, *_row(f), known] for f in ordered(findings)]
    return csv_table(FINDINGS, rows)


def findings(report: Report) -> list[list[Scalar]]:
    """A report's findings, the worst first, by ``FINDINGS`` without the model and ``known``."""
    return [_row(finding) for finding in ordered(report.findings)]


def _row(finding: Finding) -> list[Scalar]:
    return [getattr(finding, name) for name in FINDINGS[1:-1]]
