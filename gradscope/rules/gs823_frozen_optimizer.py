"""GS823: an optimizer all of whose parameters are frozen."""

from __future__ import annotations

from collections.abc import Sequence

from gradscope.records.loop import LoopOptimizer, LoopParameter, LoopRecord
from gradscope.rules._loop import LoopFindings, concerned, enough, full_names, in_steps, these
from gradscope.rules._rule import Limits, Rule, Runs
from gradscope.rules._words import plural

RULE = Rule(
    code="GS823",
    name="frozen-optimizer",
    severity="error",
    summary="all parameters of an optimizer, or of its group, are frozen",
    what=(
        "Reads the parameters of each optimizer that steps. It fires if all of them have "
        "`requires_grad=False` and none had a gradient at any step. It also fires for a group of "
        "frozen parameters, if other parameters of that model get gradients and no optimizer "
        "holds them. It names these parameters. It also fires for frozen parameters beside others "
        "that train, if the script unfreezes parameters on a condition on epochs or steps, as "
        "`epoch >= 5`, and these stay frozen to the end."
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


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for each optimizer."""
    for optimizer in loop.optimizers:
        frozen = [
            one
            for one in loop.parameters
            if optimizer.name in one.optimizers and {"untrained", "no-gradient"} <= one.facts
        ]
        if not enough(loop, optimizer.steps):
            continue
        if not frozen or any("orphan" in one.facts for one in frozen):  # GS804's
            continue
        unheld = [one for one in loop.parameters if "unheld" in one.facts]
        if len(frozen) < optimizer.parameters:
            yield from _frozen_groups(optimizer, frozen, unheld, loop)
            yield from _never_thawed(optimizer, frozen, loop)
            continue
        names = these(full_names(unheld, loop))
        instead = f" No optimizer holds {names}, which can train." if unheld else ""
        yield RULE.in_loop(
            loop,
            optimizer.name,
            f"all {plural(len(frozen), 'parameter')} of `{optimizer.name}` are frozen and had "
            f"no gradient {in_steps(optimizer.steps, optimizer.steps)}.{instead}",
            value=float(len(frozen)),
            location=(None if unheld else loop.frozen_at) or optimizer.location,
        )


def _never_thawed(
    optimizer: LoopOptimizer, frozen: Sequence[LoopParameter], loop: LoopRecord
) -> LoopFindings:
    """Yield a finding for parameters that the script would unfreeze later, but does not."""
    conditions = list(loop.facts_of("thaw")) if loop.ended and not loop.cut else []
    if len(conditions) == 1:
        yield RULE.in_loop(
            loop,
            optimizer.name,
            f"`{optimizer.name}` holds {plural(len(frozen), 'parameter')} that stayed frozen "
            f"{in_steps(optimizer.steps, optimizer.steps)}: {these(full_names(frozen, loop))}. The "
            f"script unfreezes parameters if `{conditions[0].words[0]}`.",
            severity="warning",
            advice="Print both sides of the condition: are they in the same unit, epochs or steps?",
            value=float(len(frozen)),
            cause="thaw",
            location=conditions[0].location,
            parameters=concerned(frozen, loop),
        )


def _frozen_groups(
    optimizer: LoopOptimizer,
    frozen: Sequence[LoopParameter],
    unheld: Sequence[LoopParameter],
    loop: LoopRecord,
) -> LoopFindings:
    """Yield a finding for the first frozen group, if others of its model train in no optimizer:
    alone, a group may wait to be unfrozen."""
    numbers = {one.name: one.id for one in loop.models}
    still = {(numbers.get(one.model), one.name) for one in frozen}
    for group, held in enumerate(optimizer.held):
        if not held or len(held) < optimizer.sizes[group] or not still.issuperset(held):
            continue
        members = [one for one in frozen if (numbers.get(one.model), one.name) in held]
        instead = [one for one in unheld if one.model == members[0].model and "graded" in one.facts]
        if instead:
            steps = in_steps(optimizer.steps, optimizer.steps)
            yield RULE.in_loop(
                loop,
                optimizer.name,
                f"group {group} of `{optimizer.name}` holds only frozen parameters, "
                f"{these(full_names(members, loop))}, without a gradient {steps}. No "
                f"optimizer holds {these(full_names(instead, loop))}, which can train.",
                value=float(len(members)),
                cause="group",
                location=loop.frozen_at or optimizer.location,
                parameters=concerned([*members, *instead], loop),
            )
            return
