"""GS812: a learning-rate scheduler that never steps, or whose optimizer never does."""

from __future__ import annotations

import math

from gradscope.records.loop import LoopRecord
from gradscope.rules._loop import LoopFindings, at
from gradscope.rules._rule import CHOSEN, Limits, Rule, Runs, Threshold
from gradscope.rules._words import plural

RULE = Rule(
    code="GS812",
    name="scheduler-never-steps",
    severity="warning",
    summary="a scheduler never steps, or belongs to an optimizer that never steps",
    what=(
        "Counts the steps of each scheduler until the script ends. It fires if a scheduler made "
        "none while its optimizer made some, or if a scheduler steps and its optimizer never "
        "does. If gradscope ends the script early, it needs two epochs first."
    ),
    why="The learning rate never changes: the schedule has no effect.",
    fix="Call `scheduler.step()`, and make the scheduler with the optimizer that steps.",
    sources=("PyTorch, torch.optim.lr_scheduler: how to adjust learning rate",),
    thresholds=(Threshold("steps", 5, "steps needed to judge", CHOSEN),),
    runs=Runs(loop=True, end=True),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for each scheduler, once the script has ended."""
    steps = {optimizer.name: optimizer.steps for optimizer in loop.optimizers}
    if not loop.ended:
        return
    for scheduler in loop.schedulers:
        of = steps.get(scheduler.optimizer, 0)
        if not scheduler.steps and of >= max(limits["steps"], _fewest(loop)):
            message = (
                f"`{scheduler.name}` ({scheduler.kind}) makes no step while "
                f"`{scheduler.optimizer}` makes {plural(of, 'step')}."
            )
        elif scheduler.steps and not of and any(steps.values()):
            others = [name for name, count in steps.items() if count]
            message = (
                f"`{scheduler.name}` ({scheduler.kind}) sets the learning rate of "
                f"`{scheduler.optimizer}`, which makes no step; `{others[0]}` does."
            )
        else:
            continue
        yield at(
            RULE.finding(scheduler.name, message, value=0.0, location=scheduler.location), loop
        )


def _fewest(loop: LoopRecord) -> float:
    """Return the steps after which an epoch is surely over, for a script that was ended."""
    if not loop.cut:
        return 0
    return 2 * loop.loader if loop.loader else math.inf
