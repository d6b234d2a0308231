"""GS856: batch norms with momentum 0."""

from __future__ import annotations

from gradscope.records.loop import LoopRecord
from gradscope.rules._loop import LoopFindings, these
from gradscope.rules._rule import Limits, Rule, Runs

RULE = Rule(
    code="GS856",
    name="fixed-running-statistics",
    severity="warning",
    summary="a batch norm has momentum 0: its running statistics never change",
    what=(
        "Finds batch norms with `momentum=0`, a running mean of 0 and a running variance of 1, "
        "in a model that runs in train mode."
    ),
    why=(
        "Train mode uses the batch's statistics; eval mode uses the running ones, which never "
        "moved. The network then behaves differently. In PyTorch, momentum is the weight of the "
        "new batch; in other libraries, it is the share that is kept."
    ),
    fix=("Keep `momentum=0.1`, or use `None` for the mean over all batches."),
    sources=(
        "PyTorch, torch.nn.BatchNorm1d: momentum is the weight of the new value",
        "PyTorch forum: BatchNorm momentum convention",
    ),
    runs=Runs(loop=True),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for each model."""
    for model in loop.models:
        trains = any(
            event.kind == "call" and event.of == model.name and "train" in event.facts
            for one in loop.rounds
            for event in one.events
        )
        if not model.fixed_norms or not trains or loop.steps < 2:
            continue
        yield RULE.in_loop(
            loop,
            model.fixed_norms[0],
            f"{these(model.fixed_norms)}: momentum is 0, and the running mean and variance "
            "are still 0 and 1: evaluation uses these, and training uses the batch's.",
            value=float(len(model.fixed_norms)),
            model=model.name,
        )
