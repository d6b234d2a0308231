"""GS905: a prediction depends on its own label."""

from __future__ import annotations

from gradscope.rules._leaks import leaking, unjudged
from gradscope.rules._rule import Rule

RULE = Rule(
    code="GS905",
    name="sees-the-label",
    severity="error",
    summary="a prediction depends on its own label",
    what=(
        "Changes labels: outputs at and before their position must stay the same to the last bit."
    ),
    why=("The loss falls to zero, and at inference there is no label to read."),
    fix=("Compute the prediction without the label, and shift the labels of a sequence by one."),
    sources=("karpathy/minGPT#75: targets that are not shifted",),
    runs=None,
    on_demand=True,
)

wants = unjudged
find = leaking(RULE, "label")
