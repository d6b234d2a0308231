"""GS801: each step uses the gradients of the steps before again."""

from __future__ import annotations

from itertools import pairwise

from gradscope.records.loop import LoopRecord, Round
from gradscope.rules._loop import LoopFindings, enough, held_by, in_steps
from gradscope.rules._rule import CHOSEN, Limits, Rule, Runs, Threshold

RULE = Rule(
    code="GS801",
    name="gradients-not-cleared",
    severity="error",
    summary="backward adds to gradients that an earlier step has already used",
    what=(
        "Compares, at every backward, the optimizer's gradients with those of its last step: if "
        "they are the same tensors, unchanged since, backward adds to them. Gradients that the "
        "script clears, replaces or writes to in between do not count, nor does accumulation "
        "before one step."
    ),
    why=(
        "Each step follows the sum of all gradients so far, not that of its batch. The loss "
        "rises or oscillates."
    ),
    fix="Call `optimizer.zero_grad()` once for each step, before `loss.backward()`.",
    sources=(
        "PyTorch, torch.optim.Optimizer.zero_grad; zeroing out gradients in PyTorch (recipe)",
        "Stack Overflow 48001598: why do we need to call zero_grad() in PyTorch?",
        'Karpathy 2018, most common neural net mistakes: "you forgot to .zero_grad()"',
    ),
    thresholds=(
        Threshold("share", 0.5, "share of an optimizer's steps, above which it fires", CHOSEN),
        Threshold("steps", 4, "such steps needed to report before the end of the run", CHOSEN),
    ),
    runs=Runs(loop=True),
    explains=("GS102", "GS104", "GS601", "GS602", "GS603", "GS613", "GS604", "GS607"),
    explains_later=("GS103", "GS201", "GS513"),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for each optimizer."""
    for optimizer in loop.optimizers:
        count, first, _ = loop.steps_with(optimizer.name, "uncleared")
        rounds = list(loop.rounds_of(optimizer.name))
        steps = sum(one.count for one in rounds)
        following = steps - 1  # the first has none before it
        if count <= limits["share"] * following:
            continue
        if not enough(loop, count, least=int(limits["steps"])):
            continue
        yield RULE.in_loop(
            loop,
            optimizer.name,
            "`backward` adds to the gradients that the last step has used, "
            f"{in_steps(count, following, 'step')} after the first: "
            f"{_cleared(rounds, optimizer.name)}.",
            advice=f"Call `{optimizer.name}.zero_grad()` before each `backward`.",
            value=float(count),
            threshold=limits["share"],
            location=_elsewhere(rounds, optimizer.name) or _backward(rounds),
            first=first,
            parameters=held_by(optimizer, loop),
        )


def _cleared(rounds: list[Round], optimizer: str) -> str:
    """Return the sentence on the calls that clear gradients."""
    others = {
        event.of
        for one in rounds
        for event in one.events
        if event.kind == "zero" and "uncleared" in one.step.facts
    }
    if others - {optimizer}:
        names = ", ".join(f"`{name}`" for name in sorted(others - {optimizer}))
        return f"`zero_grad` is called on {names}, not on `{optimizer}`"
    if any(event.kind == "zero" for one in rounds for event in one.events):
        return "`zero_grad` is called less often than `step`"
    return "nothing clears them"


def _elsewhere(rounds: list[Round], optimizer: str) -> str | None:
    """Return the place that clears other gradients instead of the optimizer's, or that clears them
    again."""
    events = [event for one in rounds for event in one.events if event.kind == "zero"]
    if any(event.of == optimizer for event in events):
        return None
    again = (after for before, after in pairwise(events) if after.of == before.of)
    twice = (event.location for event in again if event.location != events[0].location)
    return next(twice, next((event.location for event in events), None))


def _backward(rounds: list[Round]) -> str | None:
    found = [e.location for one in rounds for e in one.events if e.kind == "backward"]
    return next(filter(None, found), rounds[-1].step.location)
