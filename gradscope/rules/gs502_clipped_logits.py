"""GS502: scores that are cut off before a cross entropy."""

from __future__ import annotations

from collections.abc import Iterator

from gradscope.records.modules import Link
from gradscope.records.report import Report
from gradscope.rules._reading import into_cross_entropy, output_of, where, whose
from gradscope.rules._rule import Findings, Limits, Rule, Runs

RULE = Rule(
    code="GS502",
    name="clipped-logits",
    severity="error",
    summary="a ReLU or another clip is between the last layer and the cross entropy",
    what=(
        "Finds a ReLU, a clamp at zero or a sigmoid in the autograd graph whose output goes "
        "straight into a cross entropy. A tanh there is a warning."
    ),
    why=(
        "A ReLU passes no gradient to a class with a score below zero: the score can never rise "
        "again, and after a few steps entire classes are dead. A sigmoid limits scores to 0 to "
        "1, so the loss cannot fall."
    ),
    fix="Drop the activation after the last layer.",
    sources=("PyTorch, nn.CrossEntropyLoss: the input is expected to contain unnormalized logits",),
    runs=Runs(samples=1, parameters="all", calls=True),
    explains=("GS103", "GS506", "GS603", "GS613"),
)
_CUT = ("ReluBackward0", "HardtanhBackward0", "ThresholdBackward0")
_SAID = {"ReluBackward0": "ReLU", "HardtanhBackward0": "ReLU6 or hard tanh"}
_SQUASHED = {"SigmoidBackward0": "error", "HardsigmoidBackward0": "error", "TanhBackward0": None}


def wants(report: Report, limits: Limits) -> Iterator[str]:
    """Request the line of the operation, if there is a finding to locate."""
    if any(find(report, limits)):
        yield "lines"


def find(report: Report, limits: Limits) -> Findings:
    """Yield one finding per place."""
    for link in into_cross_entropy(report):
        kind = _SAID.get(link.op) or link.op.partition("Backward")[0].lower()
        if link.op in _CUT or (link.op.startswith("Clamp") and _at_zero(report, link)):
            yield RULE.finding(
                where(link),
                f"{whose(link)} {kind} goes into a cross entropy: scores below zero are cut off"
                f"{_share(report, link)}.",
                call=link.call,
                location=link.location,
            )
        elif link.op in _SQUASHED:
            yield RULE.finding(
                where(link),
                f"{whose(link)} {kind} goes into a cross entropy: scores are limited to narrow "
                "bounds.",
                severity=_SQUASHED[link.op] or "warning",
                call=link.call,
                location=link.location,
            )


def _at_zero(report: Report, link: Link) -> bool:
    """Return True if a clamp cuts at zero, not at a far bound."""
    stats = output_of(report, link.name, link.call)
    return stats is not None and stats.min == 0 and bool(stats.zeros)


def _share(report: Report, link: Link) -> str:
    stats = output_of(report, link.name, link.call)
    if stats is None or not stats.zeros or stats.min != 0:
        return ""
    return f", {stats.zeros} of {stats.numel} in this run"
