"""GS904: masked tokens change other outputs, or the model reads tokens that it should predict."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gradscope.records.report import Finding, Report
from gradscope.rules._leaks import leaking, unjudged
from gradscope.rules._rule import Limits, Rule

RULE = Rule(
    code="GS904",
    name="sees-masked-tokens",
    severity="error",
    summary="masked tokens affect other outputs, or the model reads tokens that it should predict",
    what=("Replaces masked tokens: all other outputs must stay the same to the last bit."),
    why=("A model that reads the token that it should predict learns to copy it."),
    fix=("Apply the mask before positions are mixed, and in every operation that mixes them."),
    sources=("huggingface/transformers#31673: a mask that is not applied",),
    runs=None,
    on_demand=True,
)


def wants(report: Report, limits: Limits) -> Iterable[str]:
    """Request the forward passes that differ in one place."""
    return unjudged(report)


def find(report: Report, limits: Limits) -> Iterator[Finding]:
    """Yield the finding at the first call that leaks."""
    return leaking(report, RULE, "mask")
