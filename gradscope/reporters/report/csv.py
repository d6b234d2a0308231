"""A report as RFC 4180: a row for each call, direction and path, each parameter, or each finding.

Floats have every digit. Text that a spreadsheet would run as a formula gets a leading apostrophe,
and characters that do not print are written as escapes; JSON keeps names exactly.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from io import StringIO

from gradscope.records.report import CheckReport, Finding, Report
from gradscope.reporters.report import _checked
from gradscope.reporters.report._findings import ordered
from gradscope.reporters.report._view import View
from gradscope.reporters.report.tables import derive
from gradscope.reporters.report.tables.columns import Scalar
from gradscope.typeset.text import plain

suffix = ".csv"

FINDINGS = (
    *("model", "severity", "code", "rule", "name", "call", "message"),
    *("value", "threshold", "source", "cause", "location", "advice", "known"),
)


def render(report: Report, view: View) -> str:
    """One table: the calls, unless the view asks for the parameters or the findings."""
    if view.table == "findings":
        return render_check(_checked.alone(report), view)
    return _written(*derive.records(report, view))


def render_check(check: CheckReport, view: View) -> str:
    """A row for each finding; a run that failed is a row without a code."""
    rows: list[list[Scalar]] = []
    for model in check.models:
        title = _checked.title(model.run)
        error = model.error
        if error is not None:
            message = f"{error.exception or error.kind}: {error.message}"
            row: list[Scalar] = [title, "error", "", error.kind, error.name, error.call, message]
            rows.append([*row, None, None, None, None, error.location, error.advice, False])
        for known, findings in ((False, model.findings), (True, model.known)):
            rows += [[title, *_row(f), known] for f in ordered(findings)]
    return _written(FINDINGS, rows)


def findings(report: Report) -> list[list[Scalar]]:
    """A report's findings, the worst first, by ``FINDINGS`` without the model and ``known``."""
    return [_row(finding) for finding in ordered(report.findings)]


def _row(finding: Finding) -> list[Scalar]:
    return [getattr(finding, name) for name in FINDINGS[1:-1]]


def _written(header: Sequence[str], rows: Sequence[Sequence[Scalar]]) -> str:
    out = StringIO()
    writer = csv.writer(out)
    writer.writerow(header)
    writer.writerows([_field(value) for value in row] for row in rows)
    return out.getvalue()


def _field(value: Scalar) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        text = plain(value)
        return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text
    return repr(value)
