"""GS907: another order of a set's elements gives other results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gradscope.records.report import Finding, Report
from gradscope.rules._leaks import leaking, unjudged
from gradscope.rules._rule import Limits, Rule

RULE = Rule(
    code="GS907",
    name="depends-on-order",
    severity="error",
    summary="another order of a set's elements gives other results",
    what=("Gives the elements of a set in another order: outputs must move with them, or stay."),
    why=("A model of sets then learns from an order that means nothing."),
    fix=("Leave out positions, and reduce with what knows no order: sum, mean, maximum."),
    sources=("Zaheer et al. 2017, Deep Sets",),
    runs=None,
    on_demand=True,
)


def wants(report: Report, limits: Limits) -> Iterable[str]:
    """Forward passes that differ in one place."""
    return unjudged(report)


def find(report: Report, limits: Limits) -> Iterator[Finding]:
    """The call that lets it through."""
    return leaking(report, RULE, "order")
