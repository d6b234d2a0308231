"""GS503: a sigmoid before a loss that has its own."""

from __future__ import annotations

from collections.abc import Iterator

from gradscope.records.report import Report
from gradscope.rules._reading import unique, where, whose
from gradscope.rules._rule import Findings, Limits, Rule, Runs

RULE = Rule(
    code="GS503",
    name="sigmoid-before-bce-with-logits",
    severity="error",
    summary="a sigmoid feeds a binary cross entropy with logits, which takes raw scores",
    what=(
        "Finds a sigmoid or a softmax in the autograd graph whose output goes into a binary "
        "cross entropy with logits."
    ),
    why=(
        "The loss applies its own sigmoid to numbers between 0 and 1. No probability is then "
        "under 0.5 or above 0.73: negatives are not separable, and the loss stays near 0.69."
    ),
    fix="Drop the sigmoid and give the loss the raw scores; apply it when you want probabilities.",
    sources=(
        "PyTorch, nn.BCEWithLogitsLoss: combines a sigmoid layer and the BCELoss",
        "Lightning-AI/pytorch-lightning#18272",
    ),
    runs=Runs(samples=1, parameters="all", calls=True),
    explains=("GS506", "GS603", "GS613"),
)
_OPS = {"SigmoidBackward0": "sigmoid", "SoftmaxBackward0": "softmax"}


def wants(report: Report, limits: Limits) -> Iterator[str]:
    """Request the line of the operation, if there is a finding to locate."""
    if any(find(report, limits)):
        yield "lines"


def find(report: Report, limits: Limits) -> Findings:
    """Yield one finding per place."""
    for link in unique(report):
        if link.op in _OPS and link.into.startswith("BinaryCrossEntropyWithLogits"):
            yield RULE.finding(
                where(link),
                f"{whose(link)} {_OPS[link.op]} goes into a binary cross entropy with logits, "
                "which applies its own sigmoid.",
                call=link.call,
                location=link.location,
            )
