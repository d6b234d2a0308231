"""The shared part of the leak rules, which read the results of `gradscope leaks`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gradscope.records.report import Finding, Report
from gradscope.rules._rule import Rule


def unjudged(report: Report) -> Iterable[str]:
    """Request the full sample that judges the axes, if it was not taken."""
    asked = report.leaks is None and report.error is None and bool(report.calls)
    return ("leaks",) if asked else ()


def leaking(report: Report, rule: Rule, axis: str) -> Iterator[Finding]:
    """Yield a finding if the axis leaks."""
    for one in report.leaks or ():
        if one.axis == axis and one.verdict == "leaks":
            place = one.source
            yield rule.finding(
                one.layer or "",
                one.message,
                advice=one.advice,
                call=one.call,
                value=one.effect,
                location=None if place is None else f"{place.file}:{place.line}",
            )
