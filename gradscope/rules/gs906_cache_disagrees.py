"""GS906: decoding step by step gives other outputs than the full pass."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gradscope.records.report import Finding, Report
from gradscope.rules._leaks import leaking, unjudged
from gradscope.rules._rule import Limits, Rule

RULE = Rule(
    code="GS906",
    name="cache-disagrees",
    severity="error",
    summary="decoding step by step gives other outputs than the full pass",
    what=(
        "Runs a prefix at once and the rest token by token: outputs must equal those of the full "
        "pass."
    ),
    why=("Generation then uses a different function than training."),
    fix=("Check positions, mask and the order of the cached keys at each step."),
    sources=("karpathy/nanochat#844: a cache that decodes otherwise",),
    runs=None,
    on_demand=True,
)


def wants(report: Report, limits: Limits) -> Iterable[str]:
    """Request the forward passes that differ in one place."""
    return unjudged(report)


def find(report: Report, limits: Limits) -> Iterator[Finding]:
    """Yield the finding at the first call that leaks."""
    return leaking(report, RULE, "cache")
