"""GS703: buffers that differ between ranks, as BatchNorm's running statistics."""

from __future__ import annotations

from collections.abc import Iterator

from gradscope.records.ranks import BUFFER, GRADIENT, PARAMETER, RanksRecord
from gradscope.records.training import TrainingFinding
from gradscope.rules._ranks import difference, named, on_ranks, since, the_others
from gradscope.rules._rule import Limits, Rule, Runs

RULE = Rule(
    code="GS703",
    name="unequal-buffers",
    severity="info",
    summary="buffers differ between ranks, such as running statistics of each rank's data",
    what=(
        "Compares buffers that are not broadcast: under DistributedDataParallel with "
        "`broadcast_buffers=False`, and in models without a wrapper. By default, rank 0's "
        "buffers are broadcast before each forward, and there is nothing to compare. GS701 and "
        "GS702 report parameters and gradients that differ."
    ),
    why=(
        "In eval mode BatchNorm uses its running statistics: each rank evaluates a different "
        "model, and the checkpoint holds the statistics of one rank's data."
    ),
    fix=(
        "Convert with `torch.nn.SyncBatchNorm.convert_sync_batchnorm`, or average the buffers over "
        "ranks before evaluation and before a checkpoint is written."
    ),
    sources=(
        "PyTorch, DistributedDataParallel: broadcast_buffers",
        "PyTorch issue 30718: to synchronise BatchNorm's statistics before evaluation",
    ),
    runs=Runs(ranks=True),
)


def find_over_ranks(ranks: RanksRecord, limits: Limits) -> Iterator[TrainingFinding]:
    """Yield one finding for each model whose buffers alone differ."""
    for one in ranks.differences:
        kinds = (PARAMETER, GRADIENT)
        if one.kind != BUFFER or not one.names:
            continue
        if any(difference(ranks, one.model, kind) is not None for kind in kinds):
            continue
        finding = RULE.finding(
            one.names[0],
            f"{named(one)} on {on_ranks(one.ranks, one.compared)} differ from "
            f"{the_others(one)} {since(one)}.",
            value=float(len(one.names)),
            cause="not-broadcast",
        )
        yield TrainingFinding(finding, (one.steps,), one.model)
