"""GS851: cosine scores that are too small for a softmax."""

from __future__ import annotations

import math

from gradscope.records.loop import LoopRecord
from gradscope.rules._loop import LoopFindings, of_loss, operations
from gradscope.rules._rule import CHOSEN, SILENT_ON_HONEST, Limits, Rule, Runs, Threshold
from gradscope.rules._words import number

RULE = Rule(
    code="GS851",
    name="bounded-scores",
    severity="warning",
    summary="scores are cosines times less than 1: the softmax stays nearly uniform",
    what=(
        "Reads the scores of a classification loss in its graph. It fires if they are products "
        "of rows of norm 1, times a constant below 1."
    ),
    why=(
        "Scores differ by at most twice that constant, so the loss cannot fall far below that of "
        "guessing. Most often the cosines are multiplied by a temperature instead of divided by "
        "it."
    ),
    fix=("Divide the cosines by the temperature: `similarity / temperature`."),
    sources=(
        "Chen et al. 2020, SimCLR, equation 1: the similarity is divided by the temperature",
        "Wang et al. 2017, NormFace: why the scale is needed",
    ),
    thresholds=(Threshold("scale", 1, "factor of the cosines, below which it fires", CHOSEN),),
    calibration=SILENT_ON_HONEST,
    runs=Runs(loop=True),
    explains=("GS6",),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding."""
    for one in operations(loop, "cosine", 0.5):
        scale, classes = one.figures
        if not 0 < scale < limits["scale"]:
            continue
        least = math.log1p((classes - 1) * math.exp(-2 * scale))
        yield RULE.in_loop(
            loop,
            "",
            f"the scores are cosines times {number(scale)}: the softmax over {classes:g} stays "
            f"nearly uniform, and the loss cannot fall below {number(least)}, where guessing "
            f"gives {number(math.log(classes))}. If {number(scale)} is the temperature, divide "
            "by it.",
            value=scale,
            limit=limits.of("scale"),
            location=of_loss(loop, one),
        )
