"""GS904: masked tokens change the others, or are read where they are to be predicted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gradscope.records.report import Finding, Report
from gradscope.rules._leaks import leaking, unjudged
from gradscope.rules._rule import Limits, Rule

RULE = Rule(
    code="GS904",
    name="sees-masked-tokens",
    severity="error",
    summary="masked tokens change the others, or are read where they are to be predicted",
    what=("Gives masked tokens other content: what is not masked must keep every bit."),
    why=("A model that reads what it is to predict learns to copy it."),
    fix=("Apply the mask before anything mixes positions, and in every operation that does."),
    sources=("huggingface/transformers#31673: a mask that is not applied",),
    runs=None,
    on_demand=True,
)


def wants(report: Report, limits: Limits) -> Iterable[str]:
    """Forward passes that differ in one place."""
    return unjudged(report)


def find(report: Report, limits: Limits) -> Iterator[Finding]:
    """Find the first call that passes masked tokens on."""
    return leaking(report, RULE, "mask")
