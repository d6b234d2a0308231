"""GS822: an optimizer that steps on gradients with the loss scale in them."""

from __future__ import annotations

from gradscope.records.loop import LoopRecord
from gradscope.rules._loop import LoopFindings, enough
from gradscope.rules._reading import is_scale_free
from gradscope.rules._rule import CHOSEN, Limits, Rule, Runs, Threshold
from gradscope.rules._words import plural

RULE = Rule(
    code="GS822",
    name="scaled-step",
    severity="error",
    summary="an optimizer steps on gradients that still have the loss scale in them",
    what=(
        "Compares the gradient norm that the optimizer gets with that of the unscaled loss, at "
        "the steps where gradients are read. It fires if they differ by the gradient scaler's "
        "factor. It is a warning with optimizers that divide by the gradient's size, such as "
        "Adam: there the factor does little harm, and some scripts scale on purpose."
    ),
    why=(
        "With a scale of 65536, the step of SGD is 65536 times too long. Clipping and weight "
        "decay are wrong by the same factor. Steps with overflowed gradients are not skipped."
    ),
    fix="Call `scaler.step(optimizer)` and `scaler.update()` instead of `optimizer.step()`.",
    sources=(
        "PyTorch, automatic mixed precision examples: scaler.step unscales the gradients",
        "nerfstudio-project/nerfacc#307: the scaler scales the loss, and not the update step",
    ),
    thresholds=(
        Threshold("share", 0.9, "share of the steps with readings, above which it fires", CHOSEN),
    ),
    runs=Runs(loop=True),
    explains=("GS607", "GS808"),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for each optimizer."""
    for optimizer in loop.optimizers:
        if not enough(loop, optimizer.scaled):
            continue
        if optimizer.scaled <= limits["share"] * optimizer.readings:
            continue
        steps = [one.step.location for one in loop.rounds_of(optimizer.name)]
        yield RULE.in_loop(
            loop,
            optimizer.name,
            f"`{optimizer.name}` steps on gradients that are multiplied by the loss scale, in "
            f"{optimizer.scaled:,} of {plural(optimizer.readings, 'step')} that were read.",
            advice=(
                f"Call `scaler.step({optimizer.name})` and `scaler.update()` instead of "
                f"`{optimizer.name}.step()`."
            ),
            severity="warning" if is_scale_free(optimizer.kind) else None,
            value=float(optimizer.scaled),
            threshold=limits["share"],
            location=next(filter(None, steps), optimizer.location),
        )
