"""Runs the active rules: collects the full samples that they request, and their findings."""

from __future__ import annotations

from gradscope.records.ranks import RanksRecord
from gradscope.records.report import Finding, Report
from gradscope.records.training import TrainingFinding
from gradscope.rules._settings import RuleSettings
from gradscope.rules._severity import SEVERITIES

#: Full samples that a rule may request after the first pass; the model's caller takes them.
FULL_SAMPLES = frozenset(
    {"missing", "elsewhere", "zero", "non_finite", "activity", "precision", "lines", "leaks"}
)


def wanted(report: Report, settings: RuleSettings | None = None) -> frozenset[str]:
    """Return the full samples that the rules request after a suspicion in the first pass.

    A healthy run needs none.
    """
    found: set[str] = set()
    for entry, limits in (settings or RuleSettings()).active():
        if entry.wants is not None:
            found.update(entry.wants(report, limits))
    assert found <= FULL_SAMPLES, f"unknown full samples {sorted(found - FULL_SAMPLES)}"
    return frozenset(found)


def diagnose(report: Report, settings: RuleSettings | None = None) -> tuple[Finding, ...]:
    """Run the rules on a report. Findings are sorted by severity, then by code."""
    found = [
        finding
        for entry, limits in (settings or RuleSettings()).active()
        if entry.find is not None
        for finding in entry.find(report, limits)
    ]
    return tuple(sorted(found, key=lambda finding: SEVERITIES.index(finding.severity)))


def diagnose_ranks(
    ranks: RanksRecord, settings: RuleSettings | None = None
) -> tuple[TrainingFinding, ...]:
    """Run the rules on the comparison of several ranks' files."""
    found = [
        finding
        for entry, limits in (settings or RuleSettings()).active()
        if entry.find_over_ranks is not None
        for finding in entry.find_over_ranks(ranks, limits)
    ]
    return tuple(sorted(found, key=lambda one: SEVERITIES.index(one.finding.severity)))
