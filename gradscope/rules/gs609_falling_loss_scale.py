"""GS609: a loss scale that falls and falls."""

from __future__ import annotations

from gradscope.rules._history import StepHistory
from gradscope.rules._rule import Findings, Limits, Rule, Runs, Threshold
from gradscope.rules._words import number

RULE = Rule(
    code="GS609",
    name="falling-loss-scale",
    severity="warning",
    summary="the gradient scaler skips step after step, and its scale falls",
    what=(
        "Reads the loss scale at every step: a scaler halves it for each step that it skips "
        "because gradients overflowed. It fires if the scale is below 1, where it no longer "
        "helps fp16, or if it was halved repeatedly after the first 128 steps. Halvings at the "
        "start of a run are normal: the scaler searches its scale."
    ),
    why=(
        "A skipped step trains nothing. If the scale keeps falling, gradients are Inf or NaN at "
        "any scale, and no scale fixes that. At a small scale, small gradients are flushed to "
        "zero."
    ),
    fix=(
        "Find the overflow (`gradscope check MODEL --precision`, GS301, GS303), train in "
        "bfloat16, or clip the gradient after `scaler.unscale_(optimizer)`."
    ),
    sources=(
        "Micikevicius et al. 2018, Mixed precision training: dynamic loss scaling",
        "facebookresearch/metaseq#115: OPT ends at a loss scale of 2^-5",
        "PyTorch, torch.amp.GradScaler: backoff_factor and growth_interval",
    ),
    calibration=(
        "Of 44 healthy trainings of 320 to 640 steps (22 networks, two seeds; one has a scaler) 0 "
        "of 44 fire, and 2 of 2 broken ones are found. `halvings` could lie anywhere from 6 to 12; "
        "at 3.6, 2 of 44 fire."
    ),
    thresholds=(
        Threshold("scale", 1, "loss scale, below which it fires", source="what it is for"),
        Threshold("halvings", 12, "halvings in the last 128 steps, above which it fires"),
    ),
    runs=Runs(samples=0, metrics=("loss_scale",), skips=True),
)


def find_over_steps(history: StepHistory, limits: Limits) -> Findings:
    """Yield one finding for an optimizer."""
    scale = history.now.loss_scale
    if scale is None:
        return
    late = history.count > len(history.scales) + 1  # the window no longer has the beginning
    often = late and history.halvings > limits["halvings"]
    if not often and not 0 <= scale < limits["scale"]:
        return
    count = round(history.halvings)
    yield RULE.finding(
        history.now.optimizer,
        f"the loss scale is {number(scale)} in step {history.now.step}, and was halved {count} "
        f"times in the {len(history.scales)} steps before.",
        value=history.halvings if often else scale,
        limit=limits.of("halvings" if often else "scale"),
    )
