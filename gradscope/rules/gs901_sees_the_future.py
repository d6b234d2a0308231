"""GS901: an output of a causal model depends on later inputs."""

from __future__ import annotations

from gradscope.rules._leaks import leaking, unjudged
from gradscope.rules._rule import Rule

RULE = Rule(
    code="GS901",
    name="sees-the-future",
    severity="error",
    summary="an output of a causal model depends on later inputs",
    what=(
        "Replaces the input after a position: outputs up to it must stay the same to the last bit."
    ),
    why=("The loss falls because the input contains the answer; the model then fails to generate."),
    fix=(
        "Mask later positions in every layer that mixes positions, and pad convolutions on the "
        "left only."
    ),
    sources=(
        "huggingface/transformers#48745: causal models that saw later tokens",
        "arXiv 2608.22876, leaks that no inspection of masks finds",
    ),
    runs=None,
    on_demand=True,
)

wants = unjudged
find = leaking(RULE, "time")
