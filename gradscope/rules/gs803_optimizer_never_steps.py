"""GS803: an optimizer whose parameters get gradients, and that makes no step."""

from __future__ import annotations

from gradscope.records.loop import LoopOptimizer, LoopRecord
from gradscope.rules._loop import STEPS, LoopFindings, first_location, held_by
from gradscope.rules._rule import Limits, Rule, Runs
from gradscope.rules._words import plural

RULE = Rule(
    code="GS803",
    name="optimizer-never-steps",
    severity="error",
    summary="an optimizer never steps, though its parameters get gradients",
    what=(
        "Counts the backwards that gave an optimizer's parameters gradients. It fires if that "
        "optimizer never steps, and no other optimizer that steps holds the parameters."
    ),
    why="Gradients are computed but not used: these parameters keep their initial values.",
    fix=(
        "Call `optimizer.step()` after `backward`. Check its parentheses, and that the line is "
        "reached."
    ),
    sources=(
        "PyTorch, torch.optim: taking an optimization step",
        "PyTorch tutorials, optimizing model parameters: zero_grad, backward, step",
    ),
    runs=Runs(loop=True),
    explains=("GS104", "GS603", "GS613", "GS605", "GS812"),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for each optimizer."""
    for optimizer in loop.optimizers:
        if optimizer.steps or optimizer.shared == optimizer.parameters:
            continue
        if optimizer.backwards < (2 if loop.ended else STEPS):
            continue
        yield RULE.in_loop(
            loop,
            optimizer.name,
            f"`{optimizer.name}` makes no step, though its "
            f"{plural(optimizer.parameters, 'parameter')} get gradients: "
            f"{plural(optimizer.backwards, 'backward')}{'' if loop.ended else ' so far'}."
            f"{_unreached(optimizer)}{_scheduled(loop, optimizer)}",
            advice=f"Call `{optimizer.name}.step()`, with the parentheses, after `backward`.",
            value=float(optimizer.backwards),
            threshold=float(STEPS),
            location=optimizer.stepping
            or _beside(loop)
            or optimizer.reached
            or first_location(loop, "backward")
            or optimizer.location,
            parameters=held_by(optimizer, loop),
        )


def _beside(loop: LoopRecord) -> str | None:
    """Return the line with the step of another optimizer: this one's step is missing there."""
    return next((one.step.location for one in loop.rounds if one.step.location), None)


def _unreached(optimizer: LoopOptimizer) -> str:
    """Return the sentence that the line exists and was not run; "" without one."""
    return f" `{optimizer.name}.step()` is never reached." if optimizer.stepping else ""


def _scheduled(loop: LoopRecord, optimizer: LoopOptimizer) -> str:
    """Return the sentence that a scheduler steps instead."""
    for scheduler in loop.schedulers:
        if scheduler.optimizer == optimizer.name and scheduler.steps:
            return f" Only its scheduler `{scheduler.name}` steps, which moves no weight."
    return ""
