"""GS607: clipping that clips every step."""

from __future__ import annotations

from collections.abc import Iterator

from gradscope.records.report import Finding
from gradscope.rules._history import StepHistory
from gradscope.rules._rule import Limits, Rule, Runs, Threshold
from gradscope.rules._words import number, percent

#: Steps, with the one that is judged.
_HISTORY = 100
RULE = Rule(
    code="GS607",
    name="constant-clipping",
    severity="warning",
    summary="nearly every step is clipped, and by a large factor",
    what=(
        "Compares the norm of all gradients with the norm that the optimizer got, over the last "
        "128 steps. It fires where nearly all of them were clipped and the median one was by a "
        "large factor: a bound just below the usual norm is common practice."
    ),
    why=(
        "Clipping is meant for the rare step. Where it acts on all, every step has the same "
        "length, whatever the gradient says: it is another way to lower the learning rate, and "
        "near the end of training steps do not become smaller."
    ),
    fix=(
        "Raise the bound to about the 90th percentile of the unclipped norms, and lower the "
        "learning rate if training is then unstable."
    ),
    sources=(
        "Google deep-learning tuning playbook: clip at about the 90th percentile; more than half "
        "of the updates clipped is extremely aggressive",
        "Pascanu et al. 2013, On the difficulty of training recurrent neural networks",
    ),
    calibration=(
        "Of 44 healthy trainings of 320 to 640 steps (22 networks, two seeds; one clips every step "
        "by about 3) 0 of 44 fire, and 2 of 2 broken ones are found. `factor` could lie anywhere "
        "up to 30."
    ),
    thresholds=(
        Threshold("share", 0.95, "clipped steps of the last 128, above which it fires"),
        Threshold(
            "factor", 10, "the median factor by which they were clipped, above which it fires"
        ),
        Threshold("history", _HISTORY, "steps, below which nothing is said"),
    ),
    runs=Runs(
        samples=0,
        steps_before=_HISTORY - 1,
        metrics=("gradient_norm", "clipped_norm"),
    ),
)


def find_over_steps(history: StepHistory, limits: Limits) -> Iterator[Finding]:
    """One finding for an optimizer's steps."""
    clipped = history.clipped
    if clipped.usual <= limits["factor"] or clipped.count < limits["history"]:
        return
    share = history.shortened / len(clipped.values)
    if share <= limits["share"]:
        return
    yield RULE.finding(
        history.now.optimizer,
        f"{percent(share)} of the last {len(clipped.values)} steps were clipped, the median one "
        f"by a factor of {number(clipped.usual)}.",
        value=clipped.usual,
        limit=limits.of("factor"),
    )
