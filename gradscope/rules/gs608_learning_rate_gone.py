"""GS608: a learning rate that reached zero before the run's end."""

from __future__ import annotations

from gradscope.rules._history import StepHistory
from gradscope.rules._rule import Findings, Limits, Rule, Runs, Threshold
from gradscope.rules._words import number

RULE = Rule(
    code="GS608",
    name="learning-rate-gone",
    severity="warning",
    summary="the learning rate is zero or nearly zero for many steps",
    what=(
        "Compares the learning rate of all parameter groups with the highest so far. It fires if "
        "every group is at zero, or at a millionth of that, for 50 steps in a row. A schedule "
        "that reaches zero in the last step, or rises again, is not reported."
    ),
    why=(
        "These steps move no weight: the rest of the run costs as much and learns nothing. Most "
        "often the schedule was made for fewer steps than the run has, or it counts epochs and "
        "is stepped once a batch."
    ),
    fix=(
        "Make the schedule for the run's number of `scheduler.step()` calls (epochs or batches), "
        "or give it a floor (`eta_min`)."
    ),
    sources=(
        "Loshchilov and Hutter 2017, SGDR (arXiv 1608.03983)",
        "PyTorch, torch.optim.lr_scheduler: T_max and total_steps count calls of step()",
        "Goyal et al. 2017, Accurate, large minibatch SGD (arXiv 1706.02677), on schedules",
    ),
    calibration=(
        "Of 44 healthy trainings of 320 to 640 steps (22 networks, two seeds; four have a "
        "schedule) 0 of 44 fire, and 2 of 2 broken ones are found. `share` could lie anywhere from "
        "1e-07 to 1e-05."
    ),
    thresholds=(
        Threshold(
            "share", 1e-6, ("the learning rate divided by its peak, at or below which it fires")
        ),
    ),
    runs=Runs(samples=0, steps=50, metrics=("learning_rates",)),
    explains=("GS104", "GS603", "GS613", "GS605"),
)


def find_over_steps(history: StepHistory, limits: Limits) -> Findings:
    """Yield one finding for an optimizer."""
    rates = history.now.learning_rates
    if not rates:
        return
    highest = max(rates)
    if not highest <= limits["share"] * history.peak:
        return
    was = f"{number(history.peak)} at its highest" if history.peak else "never above it"
    yield RULE.finding(
        history.now.optimizer,
        f"from step {history.now.step} on the learning rate is {number(highest)}, and was {was}.",
        value=highest / history.peak if history.peak else 0.0,
        limit=limits.of("share"),
    )
