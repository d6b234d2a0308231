"""GS621: a learning rate that makes the loss diverge from the first steps on."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from gradscope.rules._history import StepHistory
from gradscope.rules._rule import CHOSEN, Findings, Limits, Rule, Runs, Threshold
from gradscope.rules._words import number

RULE = Rule(
    code="GS621",
    name="diverging-steps",
    severity="error",
    summary="the learning rate is too high: loss and gradient grow at each step, up to NaN or Inf",
    what=(
        "Reads loss, gradient norm and learning rate of the steps before the first NaN or Inf. It "
        "fires if loss and gradient grew at every one of the last steps, by the threshold in all, "
        "if this began in the first steps, and if the rate was constant. It is silent on one bad "
        "batch in a training that went well, and on an operation that makes a NaN from ordinary "
        "numbers."
    ),
    why=(
        "Each update overshoots the minimum by more than the one before, as the step is the "
        "gradient times the rate. The operation that made the first Inf is not at fault."
    ),
    fix=(
        "Lower the learning rate by a factor of ten, until the loss falls. Normalise inputs and "
        "targets: large values make the gradient large. Clip the gradient."
    ),
    sources=(
        "Goodfellow et al. 2016, Deep Learning, 4.3: gradient descent diverges if the rate is "
        "above 2 / curvature",
        "PyTorch forum: loss is nan after a few steps, the learning rate was too high",
    ),
    thresholds=(
        Threshold(
            "growth", 1000, "growth of loss and of gradient, each, at or above which it fires",
            CHOSEN,
        ),
        Threshold("begins", 3, "step of the optimizer by which the growth must have begun", CHOSEN),
        Threshold("history", 3, "earlier steps needed to judge", CHOSEN),
    ),
    runs=Runs(
        samples=0,
        steps_before="history",
        metrics=("clipped_norm", "learning_rates"),
        per="run",
        at_optimizer=True,
    ),
    explains=("GS102", "GS104", "GS203", "GS301", "GS601", "GS602", "GS604"),
)  # fmt: skip


def find_over_steps(history: StepHistory, limits: Limits) -> Findings:
    """Yield one finding for the first step of an optimizer with a NaN or Inf."""
    losses, norms = tuple(history.loss.values), tuple(history.taken.values)
    steps = history.now.optimizer_step - 1  # before this one
    grown = min(_growing(losses), _growing(norms))
    if (
        history.now.nonfinite is None
        or history.taken.count != steps  # not the first one
        or not limits["history"] <= grown
        or not grown >= steps - limits["begins"] + 1
        or len({rate for _, rate in history.rates}) != 1
    ):
        return
    loss, norm = losses[-1] / losses[-grown], norms[-1] / norms[-grown]
    if min(loss, norm) < limits["growth"]:
        return
    yield RULE.finding(
        history.now.optimizer,
        f"in the {grown} steps before the first NaN or Inf (step {history.now.step}), the loss "
        f"grew at every step, from {number(losses[-grown])} to {number(losses[-1])}, and the "
        f"gradient {number(norm)} times. The learning rate {number(history.peak)} is too high for "
        "this loss.",
        value=min(loss, norm),
        limit=limits.of("growth"),
    )


def _growing(values: Sequence[float]) -> int:
    """Return how many of the last values form a growing series above 0."""
    count = 0
    for after, before in pairwise((float("inf"), *reversed(values))):
        if not 0 < before < after:
            break
        count += 1
    return count
