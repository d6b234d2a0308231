"""GS903: padding changes positions that are not padded."""

from __future__ import annotations

from gradscope.rules._leaks import leaking, unjudged
from gradscope.rules._rule import Rule

RULE = Rule(
    code="GS903",
    name="sees-padding",
    severity="error",
    summary="padding changes the outputs of other positions",
    what=("Replaces the padding, then adds more of it: all other outputs must stay the same."),
    why=("A sample's prediction then depends on the longest sample of its batch."),
    fix=(
        "Pass the mask to attention, pooling and normalisation, and count positions without the "
        "padding."
    ),
    sources=("keras-team/keras#23038: padding that is not masked",),
    runs=None,
    on_demand=True,
)

wants = unjudged
find = leaking(RULE, "padding")
