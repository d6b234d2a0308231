"""GS826: a term of the loss is a Python number."""

from __future__ import annotations

from gradscope.records.loop import LoopRecord
from gradscope.rules._loop import LoopFindings, in_steps, operations
from gradscope.rules._rule import CHOSEN, Limits, Rule, Runs, Threshold

RULE = Rule(
    code="GS826",
    name="number-in-loss",
    severity="warning",
    summary="a term of the loss is a Python number made by `.item()`",
    what=(
        "Finds constants among the terms of the loss in its graph, and checks in the script's "
        "line whether `.item()` made them."
    ),
    why="The term changes the printed loss, but has no gradient: nothing minimizes it.",
    fix="Add the tensor, without `.item()`; use `.item()` only to print it.",
    sources=(
        "PyTorch, torch.Tensor.item: returns the value as a Python number; not differentiable",
        "discuss.pytorch.org: loss.item() in the total loss breaks the graph",
    ),
    thresholds=(Threshold("share", 0.2, "share of the losses read, above which it fires", CHOSEN),),
    runs=Runs(loop=True),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for each term."""
    for one in operations(loop, "number", limits["share"]):
        yield RULE.in_loop(
            loop,
            "",
            f"`{one.name}` is a Python number: the loss adds it "
            f"{in_steps(one.count, loop.graphs, 'loss', 'losses')} that were read, and no "
            "gradient goes through it.",
            advice="Add the tensor to the loss, without `.item()`.",
            value=float(one.count),
            threshold=limits["share"],
            cause=one.name,
            location=one.location,
        )
