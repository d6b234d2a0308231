"""GS815: one loss goes backward twice into the same gradients, or two steps use one gradient."""

from __future__ import annotations

from gradscope.records.loop import LoopEvent, LoopRecord
from gradscope.rules._loop import LoopFindings, enough, in_steps
from gradscope.rules._rule import CHOSEN, Limits, Rule, Runs, Threshold

RULE = Rule(
    code="GS815",
    name="repeated-gradient",
    severity="warning",
    summary="the same gradient is added twice, or used by two steps",
    what=(
        "Finds two cases: a backward that starts at the same tensor as an earlier one, or at a "
        "sum with that tensor as a term, while the gradients of the earlier one are there; and a "
        "step without a backward since the last step, on unchanged gradients."
    ),
    why=(
        "Two backwards of one loss double its gradients. A step on old gradients repeats a "
        "direction that no longer fits the weights."
    ),
    fix="Call `backward` once for each loss, and `step` once for each backward.",
    sources=(
        "PyTorch, torch.Tensor.backward: gradients accumulate in the leaves; retain_graph",
        "PyTorch, torch.optim: taking an optimization step",
    ),
    thresholds=(Threshold("share", 0.3, "share of the steps, above which it fires", CHOSEN),),
    runs=Runs(loop=True),
    explains=("GS102", "GS104", "GS601", "GS602", "GS603", "GS604", "GS607", "GS613", "GS621"),
    # The first step still has the weights that the script made.
    explains_later=("GS103", "GS201", "GS203", "GS301", "GS513"),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for backwards, and one for each optimizer."""
    count, first, event, before = _repeated(loop)
    if event is not None and enough(loop, count) and count > limits["share"] * loop.steps:
        message, advice = _words(event, before, in_steps(count, loop.steps))
        yield RULE.in_loop(
            loop,
            "",
            message,
            advice=advice,
            value=float(count),
            threshold=limits["share"],
            cause="backward",
            location=event.location,
            first=first,
        )
    for optimizer in loop.optimizers:
        count, first, _ = loop.steps_with(optimizer.name, "again")
        if not enough(loop, count) or count <= limits["share"] * optimizer.steps:
            continue
        where = [r.step.location for r in loop.rounds_of(optimizer.name) if "again" in r.step.facts]
        yield RULE.in_loop(
            loop,
            optimizer.name,
            f"`{optimizer.name}` steps without a `backward` since its last step, "
            f"{in_steps(count, optimizer.steps)}: it uses the same gradients again.",
            advice="Call `step` once for each backward.",
            value=float(count),
            threshold=limits["share"],
            cause="step",
            location=where[0],
            first=first,
        )


def _words(event: LoopEvent, before: LoopEvent | None, steps: str) -> tuple[str, str]:
    """Return the message and the advice for a second backward, and the one before it."""
    if "part" in event.facts and before is not None and before.location == event.location:
        return (
            f"`backward` runs on a running sum of losses before the step {steps}, again after "
            "each further term: the gradients of the earlier terms are added each time.",
            "Call `backward` once, on the whole sum: after the loop that adds the losses.",
        )
    alone = ""
    if "part" in event.facts:
        where = f", at {before.location}" if before is not None and before.location else ""
        alone = f", alone{where}, and as a term of the loss at {event.location}"
    return (
        f"`backward` runs twice on the same loss before the step {steps}{alone}: its gradients "
        "are added twice.",
        "Call `backward` once for each loss; add losses before it.",
    )


def _repeated(loop: LoopRecord) -> tuple[int, int, LoopEvent | None, LoopEvent | None]:
    """Return the number of steps, the first of them, the second backward, and the backward before
    it."""
    count, first = 0, 0
    found = before = None
    for one in loop.rounds:
        backwards = [e for e in one.events if e.kind == "backward"]
        again = [n for n, e in enumerate(backwards) if e.facts & {"repeated", "part"}]
        if again:
            count += one.count
            first = min(first or one.first, one.first)
            if found is None:
                found = backwards[again[0]]
                before = backwards[again[0] - 1] if again[0] else None
    return count, first, found, before
