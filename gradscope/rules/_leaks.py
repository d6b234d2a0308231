"""The shared part of the leak rules, which read the results of `gradscope leaks`."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gradscope.records.report import Report
from gradscope.rules._rule import Findings, Limits, Rule


def unjudged(report: Report, limits: Limits) -> Iterable[str]:
    """Request the full sample that judges the axes, if it was not taken."""
    asked = report.leaks is None and report.error is None and bool(report.calls)
    return ("leaks",) if asked else ()


def leaking(rule: Rule, axis: str) -> Callable[[Report, Limits], Findings]:
    """Return a rule's ``find``: it yields a finding if the axis leaks."""

    def find(report: Report, limits: Limits) -> Findings:
        """Yield the finding at the first call that leaks."""
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

    return find
