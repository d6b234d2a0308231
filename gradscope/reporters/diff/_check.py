"""A comparison as a check, for formats that hold findings only."""

from __future__ import annotations

from gradscope.records.diff import DiffReport
from gradscope.records.report import CheckedModel, CheckReport
from gradscope.rules import COMPARISONS


def as_check(report: DiffReport) -> CheckReport:
    """What was found is found of B."""
    model = CheckedModel(status=report.status, run=report.b, findings=report.findings)
    rules = tuple(rule.code for rule in COMPARISONS)
    return CheckReport(status=report.status, versions=report.versions, rules=rules, models=(model,))
