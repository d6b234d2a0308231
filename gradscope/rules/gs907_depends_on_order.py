"""GS907: another order of a set's elements gives other results."""

from __future__ import annotations

from gradscope.rules._leaks import leaking, unjudged
from gradscope.rules._rule import Rule

RULE = Rule(
    code="GS907",
    name="depends-on-order",
    severity="error",
    summary="results depend on the order of a set's elements",
    what=("Reorders the elements of a set: outputs must move with them, or stay the same."),
    why=("The model then learns from a meaningless order."),
    fix=("Use no positions, and reduce by sum, mean or maximum, which ignore the order."),
    sources=("Zaheer et al. 2017, Deep Sets",),
    runs=None,
    on_demand=True,
)

wants = unjudged
find = leaking(RULE, "order")
