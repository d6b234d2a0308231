"""GS616: a learning rate that keeps growing by a factor."""

from __future__ import annotations

from itertools import pairwise

from gradscope.rules._history import StepHistory
from gradscope.rules._rule import Findings, Limits, Rule, Runs, Threshold
from gradscope.rules._words import number

RULE = Rule(
    code="GS616",
    name="learning-rate-ramp",
    severity="warning",
    summary="the learning rate grows exponentially and does not stop",
    what=(
        "Reads the learning rate of every step. It fires if the rate at least doubled in each of "
        "the last four spans of 26 steps, or, after a constant rate, grew by half in each of five "
        "spans of 11 steps. Linear and cosine warm-ups grow more slowly, and so does a range test "
        "of 100 steps."
    ),
    why=(
        "The updates grow with the rate, until a step is too large for the curvature and the loss "
        "diverges. By then the weights are lost."
    ),
    fix=(
        "Stop the rise at the rate that you want. `gamma` of an ExponentialLR must be below 1. "
        "Multiply the base rate by a factor, not the rate of the step before."
    ),
    sources=(
        "Smith 2017, Cyclical learning rates (arXiv 1506.01186): the range test diverges at its "
        "end",
        "PyTorch, ExponentialLR: decays the rate by gamma",
    ),
    calibration=(
        "Of 22 healthy trainings of 320 to 640 steps (one seed) 0 of 22 fire, and 2 of 2 broken "
        "ones are found. With a rate that rises by 4 % a step, it fires 83 steps before the loss "
        "has doubled."
    ),
    thresholds=(
        Threshold(
            "growth",
            2,
            "growth of the rate in each of the last four spans, at or above which it fires",
        ),
        Threshold("steps", 26, "steps of such a span"),
        Threshold(
            "growth_after",
            1.5,
            (
                "growth of the rate in each of five spans that follow a constant rate, at or "
                "above which it fires"
            ),
        ),
        Threshold("steps_after", 11, "steps of such a span"),
        Threshold(
            "constant", 16, "steps at the lowest rate, above which the rate counts as constant"
        ),
        Threshold("history", 72, "earlier steps needed to judge"),
    ),
    runs=Runs(samples=0, steps_before="history", metrics=("learning_rates",)),
    explains=("GS601", "GS602", "GS604", "GS104", "GS615"),
)


def find_over_steps(history: StepHistory, limits: Limits) -> Findings:
    """Yield one finding for an optimizer's steps."""
    if not history.rates or history.count <= limits["history"]:
        return
    step, now = history.rates[-1]
    if now < history.peak or now <= history.rates[0][1]:
        return
    lowest = min(rate for _, rate in history.rates)
    constant = sum(rate <= lowest * 1.001 for _, rate in history.rates)
    found = _stretches(history, 4, limits["steps"], limits["growth"])
    which = "growth"
    if found is None and constant > limits["constant"]:
        found = _stretches(history, 5, limits["steps_after"], limits["growth_after"])
        which = "growth_after"
    if found is None:
        return
    rates, length = found
    yield RULE.finding(
        history.now.optimizer,
        f"the learning rate grew from {number(rates[-1])} to {number(now)} in the {length} steps "
        f"up to step {step}, in every {length // (len(rates) - 1)} of them by a factor of "
        f"{number(min(new / old for new, old in pairwise(rates)))} or more.",
        value=min(new / old for new, old in pairwise(rates)),
        limit=limits.of(which),
    )


def _stretches(
    history: StepHistory, count: int, length: float, growth: float
) -> tuple[list[float], int] | None:
    """Return the rates at the ends of the last stretches, the latest first, if each grew by the
    factor; and the number of their steps."""
    step, now = history.rates[-1]
    rates = [now]
    for i in range(1, count + 1):
        rate = next((r for at, r in reversed(history.rates) if at <= step - i * length), None)
        if not rate or rates[-1] < growth * rate:
            return None
        rates.append(rate)
    return rates, int(count * length)
