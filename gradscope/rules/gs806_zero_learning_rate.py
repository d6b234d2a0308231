"""GS806: a learning rate of zero."""

from __future__ import annotations

from gradscope.records.loop import LoopRecord
from gradscope.rules._loop import LoopFindings, enough, held_by, in_steps
from gradscope.rules._rule import Limits, Rule, Runs
from gradscope.rules._words import plural

RULE = Rule(
    code="GS806",
    name="zero-learning-rate",
    severity="error",
    summary="a learning rate is 0 in every step",
    what=(
        "Reads the learning rate of every parameter group at every step. It fires if a rate was "
        "0 in all steps so far: a warm-up that starts at 0 leaves it after one step. If other "
        "groups have a rate, it is a warning: a group may be frozen on purpose."
    ),
    why="Parameters of the group do not move, whatever their gradient.",
    fix="Check how the rate is computed: an integer division, a schedule's factor, a config.",
    sources=("PyTorch, torch.optim: per-parameter options",),
    runs=Runs(loop=True),
    explains=("GS104", "GS603", "GS613", "GS605", "GS608"),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for each optimizer."""
    for optimizer in loop.optimizers:
        zero = [n for n, count in enumerate(optimizer.zero_rates) if count == optimizer.steps]
        if not zero or not enough(loop, optimizer.steps):
            continue
        if optimizer.steps < 2:
            continue  # a warm-up may begin with it
        every = len(zero) == len(optimizer.zero_rates)
        count = sum(optimizer.sizes[number] for number in zero)
        of = "" if every else f" of group {zero[0]} ({plural(count, 'parameter')})"
        scheduler = next((s for s in loop.schedulers if s.optimizer == optimizer.name), None)
        sets = f" `{scheduler.name}` ({scheduler.kind}) sets it." if scheduler else ""
        yield RULE.in_loop(
            loop,
            optimizer.name,
            f"the learning rate{of} of `{optimizer.name}` is 0 "
            f"{in_steps(optimizer.steps, optimizer.steps)}: no step moves a weight.{sets}",
            severity="error" if every else "warning",
            value=0.0,
            cause=None if every else "group",
            location=(scheduler.made if scheduler else None) or optimizer.location,
            parameters=held_by(optimizer, loop, () if every else zero),
        )
