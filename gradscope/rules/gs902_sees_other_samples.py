"""GS902: a sample's outputs depend on the other samples of its batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gradscope.records.report import Finding, Report
from gradscope.rules._leaks import leaking, unjudged
from gradscope.rules._rule import Limits, Rule

RULE = Rule(
    code="GS902",
    name="sees-other-samples",
    severity="error",
    summary="a sample's outputs depend on the other samples of its batch",
    what=(
        "Replaces all samples but one: the outputs of that one must stay the same to the last bit."
    ),
    why=("Predictions then depend on the rest of the batch, and differ at inference."),
    fix=("Compute each sample from its own values: check reshapes, and the axes of reductions."),
    sources=(
        "Karpathy, A Recipe for Training Neural Networks: use backprop to chart dependencies",
    ),
    runs=None,
    on_demand=True,
)


def wants(report: Report, limits: Limits) -> Iterable[str]:
    """Request the forward passes that differ in one place."""
    return unjudged(report)


def find(report: Report, limits: Limits) -> Iterator[Finding]:
    """Yield the finding at the first call that leaks."""
    return leaking(report, RULE, "batch")
