"""GS823: an optimizer all of whose parameters are frozen."""

from __future__ import annotations

from collections.abc import Iterator

from gradscope.records.loop import LoopRecord
from gradscope.records.training import TrainingFinding
from gradscope.rules._loop import at, enough, full_names, in_steps, these
from gradscope.rules._rule import Limits, Rule, Runs
from gradscope.rules._words import plural

RULE = Rule(
    code="GS823",
    name="frozen-optimizer",
    severity="error",
    summary="all parameters of an optimizer are frozen",
    what=(
        "Reads the parameters of each optimizer that steps. It fires if all of them have "
        "`requires_grad=False` and none had a gradient at any step. It names the trainable "
        "parameters that no optimizer holds."
    ),
    why="No step moves a weight. If other parameters are trainable, no optimizer holds them.",
    fix=(
        "Give the optimizer the parameters that should train, or unfreeze them with "
        "`requires_grad_(True)`."
    ),
    sources=(
        "PyTorch, autograd mechanics: setting requires_grad",
        "PyTorch tutorials, transfer learning: only parameters of the final layer are optimized",
    ),
    runs=Runs(loop=True),
    explains=("GS404",),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> Iterator[TrainingFinding]:
    """Yield one finding for each optimizer."""
    for optimizer in loop.optimizers:
        frozen = [
            one
            for one in loop.parameters
            if optimizer.name in one.optimizers and {"untrained", "no-gradient"} <= one.facts
        ]
        if len(frozen) < optimizer.parameters or not enough(loop, optimizer.steps):
            continue
        if not frozen or any("orphan" in one.facts for one in frozen):  # GS804's
            continue
        unheld = [one for one in loop.parameters if "unheld" in one.facts]
        names = these(full_names(unheld, loop))
        instead = f" No optimizer holds {names}, which can train." if unheld else ""
        yield at(
            RULE.finding(
                optimizer.name,
                f"all {plural(len(frozen), 'parameter')} of `{optimizer.name}` are frozen and had "
                f"no gradient {in_steps(optimizer.steps, optimizer.steps)}.{instead}",
                value=float(len(frozen)),
                location=optimizer.location,
            ),
            loop,
        )
