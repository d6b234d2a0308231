"""GS614: targets of a regression that are far from unit size."""

from __future__ import annotations

from gradscope.records.loop import LoopRecord
from gradscope.rules._course import is_left
from gradscope.rules._loop import LoopFindings, of_loss
from gradscope.rules._rule import CHOSEN, Limits, Rule, Runs, Threshold
from gradscope.rules._words import number

RULE = Rule(
    code="GS614",
    name="target-scale",
    severity="warning",
    summary="the targets of a regression are large, and the loss hardly falls",
    what=(
        "Reads the targets of a mean squared error on a layer's output in the sampled steps. It "
        "fires if their root mean square is large and most of the loss is left at the end."
    ),
    why=(
        "A fresh network gives numbers near 0 to 1. With Adam, a bias needs 300,000 / lr steps "
        "to reach 300,000. With SGD, the gradients are as large as the targets, and the first "
        "step explodes."
    ),
    fix=(
        "Standardize the targets: `(y - y.mean()) / y.std()` over the training data, and undo it "
        "for predictions."
    ),
    sources=(
        "LeCun et al. 1998, Efficient BackProp: targets within the range of the output",
        "Slavv 2017, 37 reasons why your neural network is not working: standardize",
    ),
    thresholds=(
        Threshold("size", 100, "root mean square of the targets, above which it fires", CHOSEN),
        Threshold("left", 0.5, "the loss divided by that of the first steps, above which it fires",
                  CHOSEN),
    ),
    runs=Runs(loop=True),
    explains=("GS603", "GS612", "GS613"),
)  # fmt: skip


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for each layer's outputs."""
    course = loop.course
    if course is None or not is_left(course, limits["left"]):
        return
    for one in loop.targets:
        if one.rms is None or one.rms <= limits["size"]:
            continue
        yield RULE.in_loop(
            loop,
            "",
            f"the targets have a root mean square of {number(one.rms)}: they are not "
            f"standardized. The loss is at {number(course.last)}, and began at "
            f"{number(course.first)}.",
            value=one.rms,
            limit=limits.of("size"),
            location=one.made_at or of_loss(loop, one),
        )
