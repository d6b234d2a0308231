"""GS854: betas in the wrong order."""

from __future__ import annotations

from gradscope.records.loop import LoopRecord
from gradscope.rules._loop import LoopFindings, enough, held_by
from gradscope.rules._rule import Limits, Rule, Runs

RULE = Rule(
    code="GS854",
    name="swapped-betas",
    severity="warning",
    summary="the first beta of an optimizer like Adam is larger than the second",
    what=("Reads the `betas` of each optimizer that has two. It fires if the first is larger."),
    why=(
        "The gradient is averaged over more steps than its square: updates follow an old "
        "direction, divided by the size of only the last gradients. Most often the two are "
        "swapped."
    ),
    fix=("Use `betas=(0.9, 0.999)`: the first is for the gradient, the second for its square."),
    sources=(
        "Kingma and Ba 2014, Adam, algorithm 1: beta1 = 0.9, beta2 = 0.999",
        "Reddi et al. 2018, On the convergence of Adam: beta1 below the square root of beta2",
    ),
    runs=Runs(loop=True),
    explains=("GS6",),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for each optimizer."""
    for one in loop.optimizers:
        if not one.betas or one.betas[0] <= one.betas[1] or not enough(loop, one.steps):
            continue
        first, second = one.betas
        yield RULE.in_loop(
            loop,
            one.name,
            f"`{one.name}` ({one.kind}) has betas ({first:g}, {second:g}): the first is larger "
            "than the second, as if they were swapped.",
            value=first,
            threshold=second,
            location=one.location,
            parameters=held_by(one, loop),
        )
