"""GS902: a sample's outputs depend on the other samples of its batch."""

from __future__ import annotations

from gradscope.rules._leaks import leaking, unjudged
from gradscope.rules._rule import Rule

RULE = Rule(
    code="GS902",
    name="sees-other-samples",
    severity="error",
    summary="a sample's outputs depend on the other samples of its batch",
    what=(
        "Replaces all samples but one: the outputs of that one must stay the same to the last bit."
    ),
    why=("Predictions then depend on the rest of the batch, and differ at inference."),
    fix=("Compute each sample from its own values: check reshapes, and the axes of reductions."),
    sources=(
        "Karpathy, A Recipe for Training Neural Networks: use backprop to chart dependencies",
    ),
    runs=None,
    on_demand=True,
)

wants = unjudged
find = leaking(RULE, "batch")
