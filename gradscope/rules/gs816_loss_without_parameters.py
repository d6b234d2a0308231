"""GS816: a loss that no parameter made."""

from __future__ import annotations

from gradscope.records.loop import LoopEvent, LoopRecord
from gradscope.records.report import Finding
from gradscope.rules._loop import STEPS, LoopFindings, at, in_steps
from gradscope.rules._rule import Limits, Rule, Runs

RULE = Rule(
    code="GS816",
    name="loss-without-parameters",
    severity="error",
    summary="backward begins with a loss that depends on no parameter",
    what=(
        "Finds two cases: a backward whose loss is not the result of an operation "
        "(`torch.tensor(…, requires_grad=True)`, `loss.requires_grad_()`); and a step of an "
        "optimizer none of whose parameters has a gradient, though backward was called."
    ),
    why=(
        "The path from the loss to the parameters was cut: by `.item()`, `.detach()`, `.data`, "
        "numpy or `no_grad`. `requires_grad=True` on the result hides PyTorch's error, and "
        "nothing is learned."
    ),
    fix="Compute the loss with tensors only, and remove `requires_grad` from it.",
    sources=(
        "PyTorch forum and Stack Overflow: element 0 of tensors does not require grad and does not "
        "have a grad_fn, answered by requires_grad=True on the loss",
        "PyTorch, autograd mechanics: how autograd encodes the history",
    ),
    runs=Runs(loop=True),
    explains=("GS103", "GS401", "GS603", "GS613", "GS605"),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for a run whose losses all begin so."""
    leaves, total, found = 0, 0, None
    for one in loop.rounds:
        backwards = [event for event in one.events if event.kind == "backward"]
        total += one.count if backwards else 0
        cut = [event for event in backwards if "leaf" in event.facts]
        if cut and len(cut) == len(backwards):
            leaves += one.count
            found = found or cut[0]
    if not total:  # no optimizer makes a step
        cut = [event for event in loop.rest if event.kind == "backward" and "leaf" in event.facts]
        if cut:
            leaves = total = loop.backwards
            found = cut[0]
    if found is None or leaves < total or leaves < (1 if loop.ended else STEPS):
        return
    yield at(_finding(found, leaves, loop), loop)


def _finding(event: LoopEvent, leaves: int, loop: LoopRecord) -> Finding:
    cut = next((one.answer for one in loop.causes if one.answer.state == "missing"), None)
    before = "" if cut is None else f"{cut.message.rstrip('.')}. So "
    return RULE.finding(
        "",
        f"{before}`backward` starts at a tensor without a graph, "
        f"{in_steps(leaves, max(leaves, loop.steps))}: no parameter gets a gradient from it.",
        value=float(leaves),
        cause=None if cut is None else cut.cause,
        location=event.location if cut is None or cut.location is None else cut.location,
    )
