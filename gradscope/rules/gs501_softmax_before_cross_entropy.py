"""GS501: a softmax before a loss that has its own."""

from __future__ import annotations

from collections.abc import Iterator

from gradscope.records.modules import Link
from gradscope.records.report import Finding, Report
from gradscope.rules._reading import LOG_SOFTMAX, is_guessed, unique, where, whose
from gradscope.rules._rule import Findings, Limits, Rule, Runs

RULE = Rule(
    code="GS501",
    name="softmax-before-cross-entropy",
    severity="error",
    summary="a softmax feeds a cross entropy, which takes raw scores",
    what=(
        "Finds a softmax in the autograd graph whose output goes into a log-softmax (the first "
        "part of cross entropy), or into a negative log-likelihood, which takes logarithms. A "
        "log-softmax before a cross entropy is a warning: computed twice, it changes nothing. A "
        "softmax is a warning if the cross entropy was inferred from the output's shape without "
        "a target: your own loss may read probabilities, as a policy's does."
    ),
    why=(
        "The second softmax gets scores between 0 and 1 only: with ten classes the loss cannot "
        "fall below 1.46, and the gradient is far too small."
    ),
    fix="Drop the softmax and give the loss the raw scores; apply it when you want probabilities.",
    sources=(
        "PyTorch, nn.CrossEntropyLoss: the input is expected to contain the unnormalized logits",
        "PyTorch, nn.NLLLoss: the input is expected to contain log-probabilities",
    ),
    runs=Runs(samples=1, parameters="all", calls=True),
    explains=("GS506", "GS603", "GS613"),
)
_SOFTMAX = "SoftmaxBackward0"
_GUESSED = (
    "The cross entropy was inferred. If it is your loss, drop the softmax and give it the raw "
    "scores. If your loss reads probabilities, name it with `loss`."
)


def wants(report: Report, limits: Limits) -> Iterator[str]:
    """Request the line of the operation, if there is a finding to locate."""
    if any(find(report, limits)):
        yield "lines"


def find(report: Report, limits: Limits) -> Findings:
    """Yield one finding per place."""
    for link in unique(report):
        if link.op == _SOFTMAX and link.into == LOG_SOFTMAX:
            guessed = is_guessed(report)
            yield _finding(
                link,
                "softmax goes into a cross entropy, which applies its own.",
                severity="warning" if guessed else None,
                advice=_GUESSED if guessed else None,
            )
        elif link.op == _SOFTMAX and link.into.startswith("NllLoss"):
            yield _finding(
                link,
                "softmax goes into a negative log-likelihood, which takes the logarithm.",
                advice="Use `log_softmax` instead of `softmax`, or cross entropy on raw scores.",
            )
        elif link.op == LOG_SOFTMAX and link.into == LOG_SOFTMAX:
            yield _finding(
                link,
                "log-softmax goes into a cross entropy, which applies its own; the second "
                "changes nothing.",
                severity="warning",
                advice="Use `nll_loss`, or drop the `log_softmax`.",
            )


def _finding(
    link: Link, message: str, *, severity: str | None = None, advice: str | None = None
) -> Finding:
    return RULE.finding(
        where(link),
        f"{whose(link)} {message}",
        severity=severity,
        advice=advice,
        call=link.call,
        location=link.location,
    )
