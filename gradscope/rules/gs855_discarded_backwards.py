"""GS855: backwards that are cleared before the step."""

from __future__ import annotations

from gradscope.records.loop import LoopRecord, Round
from gradscope.rules._loop import LoopFindings, enough, in_steps
from gradscope.rules._rule import CHOSEN, Limits, Rule, Runs, Threshold

RULE = Rule(
    code="GS855",
    name="discarded-backwards",
    severity="warning",
    summary="gradients of several backwards are cleared before the step uses them",
    what=(
        "Reads the order of backward and `zero_grad` between two steps of the only optimizer. It "
        "fires if one line calls backward at least three times in a step, and gradients are "
        "cleared between each two. Backwards in a closure do not count: the optimizer uses each "
        "of them."
    ),
    why=(
        "Only the last backward counts: the others are wasted. Most often `zero_grad` is in the "
        "inner loop of a gradient accumulation."
    ),
    fix=("Call `zero_grad` once per step, before the first backward."),
    sources=(
        "PyTorch, automatic mixed precision examples: gradient accumulation",
        "PyTorch forum: gradient accumulation, where to call zero_grad",
    ),
    thresholds=(
        Threshold("backwards", 3, "backwards in a step needed to judge", CHOSEN),
        Threshold("share", 0.5, "share of the steps, above which it fires", CHOSEN),
    ),
    runs=Runs(loop=True),
    explains=("GS802",),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield at most one finding."""
    if len(loop.optimizers) != 1:
        return
    steps, most, place = 0, 0, None
    for one in loop.rounds:
        count, cleared = _discarded(one)
        if count >= limits["backwards"]:
            steps, most, place = steps + one.count, max(most, count), place or cleared
    if not enough(loop, steps) or steps <= limits["share"] * loop.steps:
        return
    yield RULE.in_loop(
        loop,
        loop.optimizers[0].name,
        f"`zero_grad` clears the gradients between the {most} backwards of a step, "
        f"{in_steps(steps, loop.steps)}: only the last backward counts.",
        value=float(most),
        limit=limits.of("backwards"),
        location=place,
    )


def _discarded(one: Round) -> tuple[int, str | None]:
    """Return the number of backwards in a round if gradients are cleared between every two, and the
    clearing line; 0 if two backwards add up, come from different lines, or from a closure."""
    if "closure" in one.step.facts:
        return 0, None
    count, lines, cleared, fresh = 0, set[str | None](), None, False
    for event in one.events:
        if event.kind == "backward":
            if fresh:
                return 0, None
            count, fresh = count + 1, True
            lines.add(event.location)
        elif event.kind == "zero" and fresh:
            cleared, fresh = event.location, False
    return (count, cleared) if len(lines) == 1 else (0, None)
