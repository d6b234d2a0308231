"""GS807: a frozen parameter that the optimizer moves."""

from __future__ import annotations

from gradscope.records.loop import LoopRecord
from gradscope.rules._loop import STEPS, LoopFindings, concerned, full_names, these
from gradscope.rules._rule import Limits, Rule, Runs
from gradscope.rules._words import plural

RULE = Rule(
    code="GS807",
    name="frozen-parameter-moves",
    severity="warning",
    summary="an optimizer moves parameters with requires_grad=False",
    what=(
        "Finds parameters that require no gradient but still have one, and compares their "
        "version before and after each step. An optimizer skips only parameters whose `.grad` is "
        "None."
    ),
    why=(
        "The frozen weights change at every step: by the last gradient before they were frozen, "
        "by momentum and by weight decay."
    ),
    fix=(
        "Set `.grad` to None when you freeze (`optimizer.zero_grad(set_to_none=True)`), or leave "
        "frozen parameters out of the optimizer."
    ),
    sources=(
        "PyTorch, torch.optim.Optimizer.zero_grad: a gradient of 0 or None behaves differently",
        "PyTorch, autograd mechanics: setting requires_grad",
    ),
    runs=Runs(loop=True),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for each optimizer."""
    for optimizer in loop.optimizers:
        moved = [
            one
            for one in loop.parameters
            if optimizer.name in one.optimizers
            and {"moved", "untrained"} <= one.facts
            and one.steps >= (1 if loop.ended else STEPS)
        ]
        if not moved:
            continue
        most = max(one.steps for one in moved)
        yield RULE.in_loop(
            loop,
            optimizer.name,
            f"`{optimizer.name}` moves {plural(len(moved), 'frozen parameter')} in "
            f"{plural(most, 'step')}, as `.grad` is not None: "
            f"{these(full_names(moved, loop))}.",
            value=float(most),
            location=loop.frozen_at
            or next((one.step.location for one in loop.rounds_of(optimizer.name)), None),
            parameters=concerned(moved, loop),
        )
