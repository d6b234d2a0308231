"""GS808: clipping without effect on any step, or of gradients that are still scaled."""

from __future__ import annotations

from gradscope.records.loop import LoopEvent, LoopRecord
from gradscope.rules._loop import LoopFindings, Parameters, enough, held_by, in_steps
from gradscope.rules._reading import is_scale_free
from gradscope.rules._rule import CHOSEN, Limits, Rule, Runs, Threshold

RULE = Rule(
    code="GS808",
    name="ineffective-clipping",
    severity="warning",
    summary="gradients are clipped too late, before they are unscaled, or for the wrong parameters",
    what=(
        "Checks each `clip_grad_norm_` and `clip_grad_value_`: a step must not have used the "
        "gradients, an optimizer must hold the parameters, there must be some, and a gradient "
        "scaler's factor must be removed first."
    ),
    why=(
        "The optimizer gets unclipped gradients, however large. With a scaler's factor in them, "
        "the bound is 65536 times too tight: every step is clipped to almost nothing."
    ),
    fix=(
        "Clip the optimizer's parameters between `backward` and `step`; with a gradient scaler, "
        "after `scaler.unscale_(optimizer)`."
    ),
    sources=(
        "PyTorch, automatic mixed precision examples: gradient clipping",
        "PyTorch, torch.nn.utils.clip_grad_norm_",
    ),
    thresholds=(Threshold("share", 0.5, "share of all steps, above which it fires", CHOSEN),),
    runs=Runs(loop=True),
    explains=("GS102", "GS104", "GS602", "GS603", "GS607", "GS612", "GS613"),
    explains_as=tuple(
        (fault, ("GS203", "GS301", "GS601", "GS604", "GS621"))
        for fault in ("used", "cleared", "foreign", "empty")
    ),
)

_FAULTS = {
    "used": (
        "gradients are clipped after the step that used them",
        "Clip between `backward` and `step`.",
    ),
    "cleared": (
        "there are no gradients when they are clipped: `zero_grad` has just cleared them",
        "Clip between `backward` and `step`.",
    ),
    "foreign": (
        "the clipped parameters are held by no optimizer",
        "Clip the parameters that the optimizer holds.",
    ),
    "empty": (
        "there is no parameter to clip: the list or generator is empty",
        "Call `model.parameters()` again for each clip: a generator is empty after its first use.",
    ),
    "scaled": (
        "gradients are clipped while the loss scale is in them",
        "Call `scaler.unscale_(optimizer)` before you clip.",
    ),
}


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for each fault."""
    for fault, (message, advice) in _FAULTS.items():
        count, first, event = _rounds(loop, fault)
        if event is None or not enough(loop, count) or count <= limits["share"] * loop.steps:
            continue
        yield RULE.in_loop(
            loop,
            event.of,
            f"{message}, {in_steps(count, loop.steps)}.",
            advice=advice,
            value=float(count),
            threshold=limits["share"],
            cause=_cause(loop, event.of, fault),
            location=event.location,
            # The clip of a step comes in the round of the next one.
            first=max(1, first - 1) if fault == "used" else first,
            parameters=_concerned(loop, event.of),
        )


def _cause(loop: LoopRecord, name: str, fault: str) -> str:
    """Return the fault, with the kind of an optimizer whose steps no clipping makes much shorter:
    unclipped gradients explain no divergence of it."""
    kinds = {one.kind for one in loop.optimizers if one.name == name or len(loop.optimizers) == 1}
    kind = next(iter(kinds), None)
    return f"{fault}, {kind}" if is_scale_free(kind) else fault


def _concerned(loop: LoopRecord, name: str) -> Parameters | None:
    """Return the parameters whose clipping has no effect; None: all of the run."""
    if len(loop.optimizers) == 1:
        return None
    return next((held_by(one, loop) for one in loop.optimizers if one.name == name), ())


def _rounds(loop: LoopRecord, fault: str) -> tuple[int, int, LoopEvent | None]:
    """Return in how many rounds gradients are clipped with this fault alone, since when, and
    where.
    """
    count, first, found = 0, 0, None
    for one in loop.rounds:
        clips = [event for event in one.events if event.kind == "clip"]
        if clips and all(fault in event.facts for event in clips):
            count += one.count
            first = min(first or one.first, one.first)
            found = found or clips[0]
    return count, first, found
