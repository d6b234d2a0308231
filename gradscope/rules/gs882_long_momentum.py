"""GS882: a momentum that sums more steps than the run can use."""

from __future__ import annotations

from gradscope.records.loop import LoopRecord
from gradscope.rules._loop import LoopFindings, held_by
from gradscope.rules._rule import CHOSEN, Limits, Rule, Runs, Threshold
from gradscope.rules._words import plural

RULE = Rule(
    code="GS882",
    name="long-momentum",
    severity="warning",
    summary="the momentum is so close to 1 that a step sums the gradients of most of the run",
    what=(
        "Reads the `momentum` m of SGD and RMSprop without dampening: a step sums about "
        "1 / (1 - m) gradients. It fires at the end of the script, if that is many, and a large "
        "share of the run's steps."
    ),
    why=(
        "Each step is 1 / (1 - m) times as large as the learning rate says, and goes on in an old "
        "direction for as many steps: the weights overshoot, and swing back."
    ),
    fix="Use `momentum=0.9`, or lower the learning rate by the same factor and train longer.",
    sources=(
        "Goh 2017, Why momentum really works (Distill): step size and damping",
        "Sutskever et al. 2013, On the importance of initialization and momentum: 0.9 to 0.99, "
        "raised late",
    ),
    thresholds=(
        Threshold("memory", 500, "1 / (1 - m), from which it is judged", CHOSEN),
        Threshold("share", 0.25, "1 / (1 - m), divided by the steps, above which it fires", CHOSEN),
    ),
    runs=Runs(loop=True, end=True),
    explains=("GS601", "GS603", "GS613"),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for each optimizer."""
    for one in loop.optimizers if loop.ended and not loop.cut else ():
        memory = 1 / (1 - one.momentum) if one.momentum < 1 else 0.0
        few = round(memory) < limits["memory"] or memory <= limits["share"] * one.steps
        if few or not one.steps:
            continue
        yield RULE.in_loop(
            loop,
            one.name,
            f"the momentum of `{one.name}` ({one.kind}) is {one.momentum:g}: a step sums the "
            f"gradients of about {memory:,.0f} steps, and the run has "
            f"{plural(one.steps, 'step')}.",
            value=memory,
            limit=limits.of("memory"),
            location=one.location,
            parameters=held_by(one, loop),
        )
