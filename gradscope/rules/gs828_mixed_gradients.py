"""GS828: a step uses the gradients of another optimizer's loss as well."""

from __future__ import annotations

from gradscope.records.loop import LoopRecord
from gradscope.rules._loop import LoopFindings, enough, held_by, in_steps
from gradscope.rules._rule import CHOSEN, Limits, Rule, Runs, Threshold

RULE = Rule(
    code="GS828",
    name="mixed-gradients",
    severity="warning",
    summary="an optimizer uses gradients left over from another optimizer's loss",
    what=(
        "Compares the gradients of an optimizer's parameters when another optimizer makes its "
        "step and when the next backward begins. It fires if a backward on another line then adds "
        "to them without `zero_grad` in between."
    ),
    why=(
        "The step follows the sum of two losses. Those of a discriminator and a generator oppose "
        "each other."
    ),
    fix=(
        "Detach the other network's output in the first loss, or call `zero_grad` right before "
        "the second backward."
    ),
    sources=(
        "PyTorch, DCGAN tutorial: the discriminator is trained on `fake.detach()`",
        "PyTorch, torch.Tensor.backward: gradients accumulate in the leaves",
    ),
    thresholds=(Threshold("share", 0.3, "share of the steps, above which it fires", CHOSEN),),
    runs=Runs(loop=True),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for each optimizer."""
    for optimizer in loop.optimizers:
        count, first, _ = loop.steps_with(optimizer.name, "mixed")
        if not enough(loop, count) or count <= limits["share"] * optimizer.steps:
            continue
        before, own = optimizer.mixed or (None, None)
        yield RULE.in_loop(
            loop,
            optimizer.name,
            f"`{optimizer.name}` uses the gradients of two losses "
            f"{in_steps(count, optimizer.steps)}: its own at {own}, and the one of the "
            f"backward at {before}, before another optimizer's step.",
            advice=f"Detach this network's output in the loss at {before}, or call "
            f"`{optimizer.name}.zero_grad()` right before the backward at {own}.",
            value=float(count),
            threshold=limits["share"],
            location=before,
            first=first,
            parameters=held_by(optimizer, loop),
        )
