"""GS617: an optimizer whose second moment still remembers a spike."""

from __future__ import annotations

from gradscope.rules._history import StepHistory, pace_of
from gradscope.rules._rule import Findings, Limits, Rule, Runs, Threshold
from gradscope.rules._words import number

RULE = Rule(
    code="GS617",
    name="stale-second-moment",
    severity="warning",
    summary="the optimizer's updates stay tiny after a spike, though the gradient is as before",
    what=(
        "Compares the root mean square of the update, divided by the learning rate, with the 128 "
        "steps before. It fires if updates stay far below them for many steps, though the "
        "gradient is no smaller."
    ),
    why=(
        "Adam divides by the root of its second moment, in which a spike decays by 0.1 % a step. "
        "For a thousand steps and more the weights hardly move, though the loss still falls "
        "slowly."
    ),
    fix=(
        "Clip the gradient, so that no batch can make the moment this large. For this run, lower "
        "`betas[1]` to 0.95 or 0.99, or go back to a checkpoint before the spike."
    ),
    sources=(
        "Kumar et al. 2025, ZClip (arXiv 2504.02507)",
        "Huang et al. 2025, SPAM (arXiv 2501.06842): spikes stay in Adam's moments; resets them",
        "Kingma and Ba 2015, Adam: the second moment averages over 1/(1 − beta2) steps",
    ),
    calibration=(
        "Of 22 healthy trainings of 320 to 640 steps (one seed) 0 of 22 fire: no update is below "
        "0.28 of the median while the gradient is usual. Of broken ones 1 of 1 is found."
    ),
    thresholds=(
        Threshold("share", 0.25, (
            "the update divided by the median of the steps before, below which it fires"
        )),
        Threshold("gradient", 0.5, (
            "the gradient's norm divided by its median, above which it fires"
        )),
        Threshold("history", 32, "earlier steps needed to judge"),
    ),
    runs=Runs(
        samples=0, steps=16, steps_before="history",
        metrics=("update_rms", "clipped_norm", "learning_rates"),
    ),
    explains=("GS603", "GS605"),
)  # fmt: skip


def find_over_steps(history: StepHistory, limits: Limits) -> Findings:
    """Yield one finding for an optimizer's steps."""
    step, before, gradients = history.now, history.pace, history.taken
    pace = pace_of(step)
    if pace is None or before.count < limits["history"] or not before.usual:
        return
    if pace >= limits["share"] * before.usual or not step.clipped_norm or not gradients.usual:
        return
    if step.clipped_norm < limits["gradient"] * gradients.usual:
        return
    yield RULE.finding(
        step.optimizer,
        f"the update of step {step.step} has a root mean square of {number(step.update_rms or 0)}, "
        f"{number(pace)} of the learning rate; the median of the steps before is "
        f"{number(before.usual)} of it. The gradient's norm is {number(step.clipped_norm)}, its "
        f"median {number(gradients.usual)}.",
        value=pace / before.usual,
        limit=limits.of("share"),
    )
