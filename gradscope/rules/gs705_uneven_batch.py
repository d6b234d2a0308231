"""GS705: batches that are larger on some ranks than on others."""

from __future__ import annotations

from collections.abc import Iterator

from gradscope.records.ranks import RanksRecord
from gradscope.records.training import TrainingFinding
from gradscope.rules._rule import Limits, Rule, Runs, Threshold
from gradscope.rules._words import plural

RULE = Rule(
    code="GS705",
    name="uneven-batch",
    severity="warning",
    summary="batches of different sizes have equal weight in the gradient",
    what=(
        "Compares the sizes of the ranks' batches step by step: the first axis of the model's "
        "input. It does not judge sizes that vary anyway (lengths of sentences, numbers of "
        "nodes), nor models with a layer that has the batch as its second axis "
        "(`batch_first=False`)."
    ),
    why=(
        "DistributedDataParallel averages over ranks the means over batches: a sample in a small "
        "batch counts for more than one in a large batch. If one rank has a batch less than the "
        "others, they wait forever."
    ),
    fix=(
        "Drop the last batch (`drop_last=True`), or pad the data to a multiple of the ranks as "
        "`DistributedSampler` does; else weight each rank's loss by its share of the samples."
    ),
    sources=(
        "PyTorch, DistributedDataParallel: the gradient equals that of one large batch only if "
        "all processes have the same number of samples",
        "PyTorch tutorial, Distributed Training with Uneven Inputs Using the Join Context Manager",
    ),
    thresholds=(
        Threshold(
            "share",
            0.5,
            "share of each rank's steps with its usual size, below which it does not judge",
            source="most of the steps",
        ),
        Threshold(
            "sizes",
            3,
            "number of different sizes on a rank, above which it does not judge",
            source="one for most steps, one for the last batch, one for the last accumulation",
        ),
    ),
    runs=Runs(ranks=True),
)


def find_over_ranks(ranks: RanksRecord, limits: Limits) -> Iterator[TrainingFinding]:
    """Yield one finding for the run, at the first step in which sizes differ."""
    one = ranks.uneven
    if one is None or one.share < limits["share"] or one.kinds > limits["sizes"]:
        return
    small, large = (
        min(one.sizes, key=one.sizes.__getitem__),
        max(one.sizes, key=one.sizes.__getitem__),
    )
    times = f"{plural(one.count, 'step')}, first in step {one.steps[0]}"
    finding = RULE.finding(
        "",
        f"batches differ in size in {times}: rank {small} had "
        f"{plural(one.sizes[small], 'sample')} and rank {large} {one.sizes[large]}.",
        value=float(one.sizes[small]),
        cause="sizes",
    )
    yield TrainingFinding(finding, (one.steps,))
