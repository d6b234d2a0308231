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
    what=("Gives everything after a position other content: outputs up to it must keep every bit."),
    why=("The loss falls since the answer is in the input; the model then fails to generate."),
    fix=(
        "Mask later positions wherever positions are mixed, and pad convolutions on the left only."
    ),
    sources=(
        "huggingface/transformers#48745: causal models that saw later tokens",
        "arXiv 2608.22876, leaks that no inspection of masks finds",
    ),
    runs=None,
    on_demand=True,
)


def wants(report: Report, limits: Limits) -> Iterable[str]:
    """Forward passes that differ in one place."""
    return unjudged(report)


def find(report: Report, limits: Limits) -> Iterator[Finding]:
    """The call that lets it through."""
    return leaking(report, RULE, "time")
