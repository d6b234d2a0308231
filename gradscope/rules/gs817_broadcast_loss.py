"""GS817: a loss that compares each prediction with the targets of all samples."""

from __future__ import annotations

from gradscope.records.loop import LoopRecord
from gradscope.records.loop_figures import LossOperation
from gradscope.rules._loop import LoopFindings, in_steps, of_loss, operations
from gradscope.rules._rule import CHOSEN, Limits, Rule, Runs, Threshold
from gradscope.typeset.numbers import shape

RULE = Rule(
    code="GS817",
    name="broadcast-loss",
    severity="error",
    summary="the loss broadcasts [N, 1] with [N] to [N, N]",
    what=(
        "Reads the graph of the loss in the sampled steps, from the loss towards the models. It "
        "fires if a loss function, or the script's own arithmetic, combines a column [N, 1] with "
        "a row [N] of the same N. Intended pairs do not count: an axis added to both sides, or "
        "by `unsqueeze`."
    ),
    why=(
        "Each prediction is compared with the targets of all samples. The best prediction is "
        "then their mean, and the loss falls no lower than the variance of the targets."
    ),
    fix="Give both the same shape: `prediction.squeeze(1)`, or `target.unsqueeze(1)`.",
    sources=(
        "pytorch/pytorch#4938: F.mse_loss has strange broadcasting semantics",
        "deepset-ai/FARM#229: a target size [32, 1] that is different to the input size [32]",
        "jiwei0921/CoNet#3: [2, 1, 256, 256] against [2, 256, 256] in smooth_l1_loss",
    ),
    thresholds=(Threshold("share", 0.2, "share of the losses read, above which it fires", CHOSEN),),
    runs=Runs(loop=True),
    explains=("GS603", "GS613"),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for each operation."""
    for one in operations(loop, "broadcast", limits["share"]):
        often = in_steps(one.count, loop.graphs, "loss", "losses")
        yield RULE.in_loop(
            loop,
            "",
            f"{_does(one)}, {often} that were read: each prediction is "
            f"compared with the targets of all {one.shapes[2][0]} samples.",
            value=float(one.count),
            threshold=limits["share"],
            cause=one.name,
            location=of_loss(loop, one),
        )


def _does(one: LossOperation) -> str:
    column, row, result = map(shape, one.shapes)
    operation = f"`{one.name}`" if one.name.isidentifier() else f"the `{one.name}` of the loss"
    return f"{operation} broadcasts {column} with {row} to {result}"
