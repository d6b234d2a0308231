"""GS821: a loss that is the same number at every step, though the batches differ."""

from __future__ import annotations

from gradscope.records.loop import LoopRecord
from gradscope.rules._loop import LoopFindings, first_location
from gradscope.rules._rule import CHOSEN, Limits, Rule, Runs, Threshold
from gradscope.rules._words import number

RULE = Rule(
    code="GS821",
    name="constant-loss",
    severity="error",
    summary="the loss is the same number at every step, to the last bit",
    what=(
        "Compares the loss of each backward with the first loss, in float32 or float64, and each "
        "batch with the first batch. It fires if all losses are equal to the last bit although "
        "the batches differ."
    ),
    why=(
        "The loss depends neither on the input nor on the moved weights. Causes are a constant "
        "output, a clamp or a softmax at the end, or an advantage or a mask of zeros."
    ),
    fix=(
        "Print the model's output for two batches, then the result of each operation between it "
        "and the loss."
    ),
    sources=(
        "PyTorch forum: loss does not change at all during training",
        "ultralytics/yolov3#191: the loss of a single class is 0 at every step",
    ),
    thresholds=(Threshold("backwards", 5, "equal losses and steps needed to judge", CHOSEN),),
    runs=Runs(loop=True),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for a run."""
    # Before the first steps, equal losses may come from a layer that begins with zeros.
    if loop.same_loss < loop.backwards or not loop.batches_differ or loop.first_loss is None:
        return
    if min(loop.same_loss, loop.steps) < limits["backwards"]:
        return
    yield RULE.in_loop(
        loop,
        "",
        f"the loss is {number(loop.first_loss)} in all {loop.backwards:,} backwards, to the "
        "last bit, though the batches differ.",
        value=float(loop.same_loss),
        limit=limits.of("backwards"),
        location=first_location(loop, "backward"),
    )
