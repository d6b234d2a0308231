"""A comparison as a check, for formats that hold findings only."""

from __future__ import annotations

from gradscope.records.diff import DiffReport
from gradscope.records.report import CheckedModel, CheckReport


def as_check(report: DiffReport) -> CheckReport:
    """What was found is found of B."""
    model = CheckedModel(status=report.status, run=report.b, findings=report.findings)
    return CheckReport(status=report.status, versions=report.versions, models=(model,))
