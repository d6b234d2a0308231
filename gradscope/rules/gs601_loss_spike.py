"""GS601: a loss that jumps far above its history."""

from __future__ import annotations

import math

from gradscope.rules._history import StepHistory
from gradscope.rules._rule import Findings, Limits, Rule, Runs, Threshold
from gradscope.rules._window import Window
from gradscope.rules._words import number

RULE = Rule(
    code="GS601",
    name="loss-spike",
    severity="warning",
    summary="the loss jumps far above its values in the steps before",
    what=(
        "Compares the loss of each step with the last 128 steps that have as many backwards, by "
        "the median and the median absolute deviation of their logarithms, which outliers do not "
        "move. It fires if the loss is many deviations above the median and also exceeds nearly "
        "all of those steps: near the end of a training, losses have long tails. If not all "
        "losses are positive, as with rewards, the loss must lie seven times as many deviations "
        "above the median."
    ),
    why=(
        "A spike is one bad batch, or the first sign that training diverges. The optimizer "
        "follows a gradient that does not fit the rest of the data, and momentum continues in "
        "that direction."
    ),
    fix=(
        "Look at the batch of that step, and at the gradient's norm before and after it. Clip "
        "the gradient, warm up or lower the learning rate, or go back to an earlier checkpoint "
        "and skip those batches."
    ),
    sources=(
        "Chowdhery et al. 2022, PaLM, section 5.1: some 20 spikes; go back 100 steps, skip 200-500 "
        "batches",
        "Team OLMo 2025, 2 OLMo 2 Furious (arXiv 2501.00656), section 3.2: the spike score counts "
        "values 7 standard deviations from a rolling average",
        "Lightning, SpikeDetection: twice the running average",
        "Rousseeuw and Croux 1993, Alternatives to the median absolute deviation",
    ),
    calibration=(
        "Of 44 healthy trainings of 320 to 640 steps (22 networks, two seeds) 0 of 44 fire, and 3 "
        "of 3 broken ones are found. `deviations` could lie anywhere up to 10 and `beyond` up to "
        "9; noise with long tails, as log-normal losses of 40,000 steps, is silent too."
    ),
    thresholds=(
        Threshold(
            "deviations",
            7,
            "robust standard deviations above the median of the logarithms, above which it fires",
            source="the spike score of OLMo 2",
        ),
        Threshold(
            "beyond",
            3,
            "distance from the median divided by the largest distance before, without the "
            "highest 2 %, above which it fires",
        ),
        Threshold("history", 32, "earlier steps needed to judge"),
    ),
    runs=Runs(samples=0, steps_before="history", metrics=("loss",)),
    explains=("GS617",),
)
#: The least deviation that is believed: a loss that repeats itself exactly has none.
_FLOOR = 1e-3
#: The limit is this many times as large for losses that are not all positive.
_SIGNED = 7


def stands_out(before: Window, loss: float | None, limits: Limits) -> tuple[float, float] | None:
    """Return the distance of a loss above the earlier ones, in deviations, and the limit; None if
    the loss is usual."""
    if loss is None or before.count == 0 or loss <= before.high:
        return None
    if before.count < limits["history"] or not math.isfinite(loss):
        return None
    needed = limits["deviations"] * (1 if before.factor is not None else _SIGNED)
    deviations = before.deviations(loss, _FLOOR)
    if deviations <= needed:
        return None
    if loss - before.usual <= limits["beyond"] * (before.high - before.usual):
        return None
    return deviations, needed


def find_over_steps(history: StepHistory, limits: Limits) -> Findings:
    """Yield one finding for an optimizer's steps."""
    before, loss = history.loss, history.now.loss
    found = stands_out(before, loss, limits)
    if found is None or loss is None:
        return
    yield RULE.finding(
        history.now.optimizer,
        f"the loss of step {history.now.step} is {number(loss)}, after a median of "
        f"{number(before.usual)} in the steps before, where nearly all losses were at most "
        f"{number(before.high)}.",
        value=found[0],
        threshold=found[1],
        source=limits.source("deviations"),
    )
