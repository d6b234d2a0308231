"""GS802: gradients are cleared before the optimizer has used them."""

from __future__ import annotations

from gradscope.records.loop import LoopRecord, Round
from gradscope.rules._loop import LoopFindings, enough, held_by, in_steps
from gradscope.rules._rule import CHOSEN, Limits, Rule, Runs, Threshold

RULE = Rule(
    code="GS802",
    name="gradients-cleared-before-step",
    severity="error",
    summary="gradients are cleared between backward and step",
    what=(
        "Finds steps with a `zero_grad` since the last backward, after which the optimizer's "
        "parameters have no gradient, or one of zeros."
    ),
    why=(
        "The optimizer gets no gradient: it skips the parameters, or moves them by weight decay "
        "and old momentum only. The loss does not fall."
    ),
    fix="Call `zero_grad` before `backward`, or after `step`.",
    sources=(
        "PyTorch tutorials, optimizing model parameters: zero_grad, backward, step",
        "PyTorch, torch.optim.Optimizer.zero_grad",
    ),
    thresholds=(Threshold("share", 0.5, "share of the steps, above which it fires", CHOSEN),),
    runs=Runs(loop=True),
    explains=("GS103", "GS104", "GS401", "GS603", "GS613", "GS605"),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for each optimizer."""
    for optimizer in loop.optimizers:
        count, first, _ = loop.steps_with(optimizer.name, "cleared")
        if not enough(loop, count) or count <= limits["share"] * optimizer.steps:
            continue
        cleared, where = _zero(list(loop.rounds_of(optimizer.name)))
        yield RULE.in_loop(
            loop,
            optimizer.name,
            f"`{cleared}.zero_grad()` clears the gradients between `backward` and "
            f"`{optimizer.name}.step()` {in_steps(count, optimizer.steps)}: the optimizer gets "
            "no gradient.",
            advice=f"Move `{cleared}.zero_grad()` before `backward`, or after `step`.",
            value=float(count),
            threshold=limits["share"],
            location=where,
            first=first,
            parameters=held_by(optimizer, loop),
        )


def _zero(rounds: list[Round]) -> tuple[str, str | None]:
    """Return the call that cleared them, and its place."""
    for one in rounds:
        if "cleared" in one.step.facts:
            for event in reversed(one.events):
                if event.kind == "zero":
                    return event.of, event.location
    return "optimizer", None
