"""GS853: an optimizer that is made anew for each step."""

from __future__ import annotations

from gradscope.records.loop import LoopRecord
from gradscope.rules._loop import LoopFindings, held_by
from gradscope.rules._rule import CHOSEN, Limits, Rule, Runs, Threshold

RULE = Rule(
    code="GS853",
    name="optimizer-made-anew",
    severity="warning",
    summary="an optimizer with a state is created again for each step",
    what=(
        "Notes the line that makes each optimizer. It fires if one line makes optimizers "
        "repeatedly for the same parameters, and each makes one step. SGD does not count: it may "
        "have no state."
    ),
    why=(
        "Moments and step counts are lost each time: every step of Adam is a first step, as "
        "large as the learning rate whatever the gradient."
    ),
    fix=("Make the optimizer once, before the loop."),
    sources=(
        "PyTorch, torch.optim: the optimizer holds the current state",
        "Kingma and Ba 2014, Adam, algorithm 1: the moments are kept between steps",
    ),
    thresholds=(Threshold("times", 5, "optimizers in a row needed to judge", CHOSEN),),
    runs=Runs(loop=True),
    explains=("GS6",),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for each line."""
    found = {}
    for one in loop.optimizers:
        if one.anew >= limits["times"] and one.kind != "SGD":
            found[one.location] = one
    for line, one in found.items():
        yield RULE.in_loop(
            loop,
            one.name,
            f"`{one.name}` ({one.kind}) is created again for each step, {one.anew + 1:,} "
            "times: its moments are lost each time.",
            value=float(one.anew),
            limit=limits.of("times"),
            location=line,
            parameters=held_by(one, loop),
        )
