"""GS903: padding changes positions that are not padded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gradscope.records.report import Finding, Report
from gradscope.rules._leaks import leaking, unjudged
from gradscope.rules._rule import Limits, Rule

RULE = Rule(
    code="GS903",
    name="sees-padding",
    severity="error",
    summary="padding changes what is not padded",
    what=("Gives padded places other content, and then more of them: all other outputs must stay."),
    why=("A sample's prediction then depends on the longest sample of its batch."),
    fix=("Give the mask to attention, pooling and normalisation; count positions without it."),
    sources=("keras-team/keras#23038: padding that is not masked",),
    runs=None,
    on_demand=True,
)


def wants(report: Report, limits: Limits) -> Iterable[str]:
    """Forward passes that differ in one place."""
    return unjudged(report)


def find(report: Report, limits: Limits) -> Iterator[Finding]:
    """The call that lets it through."""
    return leaking(report, RULE, "padding")
