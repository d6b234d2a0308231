"""GS856: batch norms with a momentum of 0, or one that is too small for the run."""

from __future__ import annotations

from gradscope.records.loop import LoopModel, LoopRecord
from gradscope.records.training import TrainingFinding
from gradscope.rules._loop import LoopFindings, these
from gradscope.rules._rule import Limits, Rule, Runs
from gradscope.rules._words import number, plural

RULE = Rule(
    code="GS856",
    name="fixed-running-statistics",
    severity="warning",
    summary="a batch norm's momentum is 0 or too small: its running statistics hardly change",
    what=(
        "Finds batch norms with `momentum=0`, a running mean of 0 and a running variance of 1, "
        "in a model that runs in train mode. At the end of the script it also finds those that "
        "have read 50 batches and more, and whose running statistics are still for more than half "
        "the initial ones: (1 - momentum) to the power of the number of batches."
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
        if loop.ended and trains and model.slow_norms:
            yield _slow(model, loop)
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


def _slow(model: LoopModel, loop: LoopRecord) -> TrainingFinding:
    """Return the finding on running statistics that have hardly moved."""
    momentum, batches = model.slow_norm
    left = (1 - momentum) ** batches
    return RULE.in_loop(
        loop,
        model.slow_norms[0],
        f"{these(model.slow_norms)}: with momentum {number(momentum)}, {left:.0%} of the running "
        f"mean and variance is still the initial one after {plural(batches, 'batch', 'batches')}: "
        "evaluation uses these, and training uses the batch's.",
        value=left,
        cause="slow",
        model=model.name,
    )
