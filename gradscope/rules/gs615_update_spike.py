"""GS615: an update that jumps though the gradient does not."""

from __future__ import annotations

from gradscope.rules._history import StepHistory, pace_of
from gradscope.rules._rule import Findings, Limits, Rule, Runs, Threshold
from gradscope.rules._words import number

RULE = Rule(
    code="GS615",
    name="update-spike",
    severity="warning",
    summary="the optimizer's update jumps though the gradient does not",
    what=(
        "Compares the root mean square of the update, divided by the learning rate, with the 128 "
        "steps before. It fires if the update jumps far above them, and by more than the "
        "gradient. A step in which a parameter gets its first gradient does not count, nor one "
        "after a step without metrics: its gradient may be in the update."
    ),
    why=(
        "An optimizer that divides by its second moment makes large steps if that moment is too "
        "small: after its state was lost, or while the moment lags behind. The weights jump "
        "before the loss shows it. Adam's first step moves every element by the learning rate, "
        "several times a usual step."
    ),
    fix=(
        "If the optimizer was made anew, keep it, or load its state. Otherwise lower `betas[1]` to "
        "0.95, raise `eps`, or warm the learning rate up again."
    ),
    sources=(
        "marin-community/marin, issue 1368: the norm of Adam's update spikes (2x) before the loss",
        "Molybog et al. 2023, A theory on Adam instability (arXiv 2304.09871)",
        "Ma and Yarats 2021, On the adequacy of untuned warmup (arXiv 1910.04209): the first "
        "updates of Adam",
    ),
    calibration=(
        "Of 22 healthy trainings of 320 to 640 steps (one seed) 0 of 22 fire, and 2 of 2 broken "
        "ones are found. In healthy ones, the update lies up to 5 deviations above the steps "
        "before. If the optimizer was made anew, it lies 11 to 17 above."
    ),
    thresholds=(
        Threshold("ratio", 2, (
            "the update divided by the median of the steps before, above which it fires"
        ),
                  source="marin-community/marin#1368"),
        Threshold("beyond", 1.5, (
            "the update divided by the largest before, without the highest 2 %; it must be above "
            "this too"
        )),
        Threshold("deviations", 7, (
            "robust standard deviations above the median of the logarithms; it must be above "
            "this too"
        ),
                  source="the spike score of OLMo 2"),
        Threshold("alone", 1.5, (
            "growth of the update divided by growth of the gradient's norm; it must be above "
            "this too"
        )),
        Threshold("history", 32, "earlier steps needed to judge"),
    ),
    runs=Runs(
        samples=0, steps_before="history", metrics=("update_rms", "clipped_norm", "learning_rates")
    ),
    explains=("GS601", "GS602"),
)  # fmt: skip
#: The least deviation that is believed, as a share.
_FLOOR = 0.03


def find_over_steps(history: StepHistory, limits: Limits) -> Findings:
    """Yield one finding for an optimizer's steps."""
    step, before, gradients = history.now, history.pace, history.taken
    pace = pace_of(step)
    if pace is None or before.count < limits["history"] or not before.usual:
        return
    ratio = pace / before.usual
    if ratio < limits["ratio"] or pace < limits["beyond"] * before.high:
        return
    deviations = before.deviations(pace, _FLOOR)
    if deviations < limits["deviations"] or not step.clipped_norm or not gradients.usual:
        return
    if step.optimizer_step - history.read > 1:
        return  # gradients that were not read may be in the moments
    grown = step.clipped_norm / gradients.usual
    if ratio < limits["alone"] * max(1.0, grown) or history.norms.joined():
        return
    rate = max(step.learning_rates)
    yield RULE.finding(
        step.optimizer,
        f"the update of step {step.step} has a root mean square of {number(step.update_rms or 0)}, "
        f"{number(pace)} of the learning rate {number(rate)}; the median of the steps before is "
        f"{number(before.usual)} of it. The gradient's norm is {number(grown)} times its median.",
        value=ratio,
        limit=limits.of("ratio"),
    )
