"""GS904: masked tokens change other outputs, or the model reads tokens that it should predict."""

from __future__ import annotations

from gradscope.rules._leaks import leaking, unjudged
from gradscope.rules._rule import Rule

RULE = Rule(
    code="GS904",
    name="sees-masked-tokens",
    severity="error",
    summary="masked tokens affect other outputs, or the model reads tokens that it should predict",
    what=("Replaces masked tokens: all other outputs must stay the same to the last bit."),
    why=("A model that reads the token that it should predict learns to copy it."),
    fix=("Apply the mask before positions are mixed, and in every operation that mixes them."),
    sources=("huggingface/transformers#31673: a mask that is not applied",),
    runs=None,
    on_demand=True,
)

wants = unjudged
find = leaking(RULE, "mask")
