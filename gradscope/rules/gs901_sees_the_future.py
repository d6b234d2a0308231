"""GS901: an output of a causal model depends on later inputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gradscope.records.report import Finding, Report
from gradscope.rules._leaks import leaking, unjudged
from gradscope.rules._rule import Limits, Rule

RULE = Rule(
    code="GS901",
    name="sees-the-future",
    severity="error",
    summary="an output of a causal model depends on later inputs",
    what=(
        "Replaces the input after a position: outputs up to it must stay the same to the last bit."
    ),
    why=("The loss falls because the input contains the answer; the model then fails to generate."),
    fix=(
        "Mask later positions in every layer that mixes positions, and pad convolutions on the "
        "left only."
    ),
    sources=(
        "huggingface/transformers#48745: causal models that saw later tokens",
        "arXiv 2608.22876, leaks that no inspection of masks finds",
    ),
    runs=None,
    on_demand=True,
)


def wants(report: Report, limits: Limits) -> Iterable[str]:
    """Request the forward passes that differ in one place."""
    return unjudged(report)


def find(report: Report, limits: Limits) -> Iterator[Finding]:
    """Yield the finding at the first call that leaks."""
    return leaking(report, RULE, "time")
