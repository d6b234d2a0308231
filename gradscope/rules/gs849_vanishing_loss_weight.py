"""GS849: a learned weight of a loss that goes to zero."""

from __future__ import annotations

from gradscope.records.loop import LoopRecord
from gradscope.rules._loop import LoopFindings, enough, of_loss
from gradscope.rules._rule import CHOSEN, SILENT_ON_HONEST, Limits, Rule, Runs, Threshold
from gradscope.rules._words import number

RULE = Rule(
    code="GS849",
    name="vanishing-loss-weight",
    severity="warning",
    summary="a learned loss weight shrinks to zero: no term of the loss keeps it from zero",
    what=(
        "Finds terms of the loss that are multiplied by a positive function of a small parameter "
        "alone, such as `exp(-log_var)`. It fires if no other term depends on that parameter, "
        "and the weight has fallen to a part of its first value."
    ),
    why=(
        "The loss falls with the weight, whatever the model predicts: the weight goes to 0, and "
        "so does the gradient of the term."
    ),
    fix=(
        "Add the term that limits the weight: `exp(-log_var) * loss + log_var`, as in the "
        "likelihood of a Gaussian."
    ),
    sources=("Kendall et al. 2018, Multi-task learning using uncertainty to weigh losses, eq. 7",),
    thresholds=(
        Threshold("left", 0.5, "last weight divided by the first, below which it fires", CHOSEN),
    ),
    calibration=SILENT_ON_HONEST,
    runs=Runs(loop=True),
    explains=("GS6",),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for each kind of weight."""
    for one in loop.operations:
        if one.kind != "learned-weight" or not enough(loop, one.count):
            continue
        first, last = one.first[0], one.figures[0]
        if last >= limits["left"] * first or one.count < loop.graphs / 2:
            continue
        yield RULE.in_loop(
            loop,
            "",
            f"the learned weight of a loss term (`{one.name}` of a parameter) fell from "
            f"{number(first)} to {number(last)}: without a term like `+ log_var` it goes to "
            "zero.",
            value=last / first,
            limit=limits.of("left"),
            location=of_loss(loop, one),
        )
