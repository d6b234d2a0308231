"""GS906: decoding step by step gives other outputs than the full pass."""

from __future__ import annotations

from gradscope.rules._leaks import leaking, unjudged
from gradscope.rules._rule import Rule

RULE = Rule(
    code="GS906",
    name="cache-disagrees",
    severity="error",
    summary="decoding step by step gives other outputs than the full pass",
    what=(
        "Runs a prefix at once and the rest token by token: outputs must equal those of the full "
        "pass."
    ),
    why=("Generation then uses a different function than training."),
    fix=("Check positions, mask and the order of the cached keys at each step."),
    sources=("karpathy/nanochat#844: a cache that decodes otherwise",),
    runs=None,
    on_demand=True,
)

wants = unjudged
find = leaking(RULE, "cache")
