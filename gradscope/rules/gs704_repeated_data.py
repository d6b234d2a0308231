"""GS704: ranks that train on the same batches."""

from __future__ import annotations

from collections.abc import Iterator

from gradscope.records.ranks import RanksRecord
from gradscope.records.training import TrainingFinding
from gradscope.rules._ranks import on_ranks
from gradscope.rules._rule import Limits, Rule, Runs, Threshold

RULE = Rule(
    code="GS704",
    name="repeated-data",
    severity="warning",
    summary="ranks that should get different data get the same",
    what=(
        "Compares, bit for bit, the model inputs of ranks in the sampled steps. It fires if "
        "ranks of different data-parallel groups got the same in at least three samples and in "
        "half of all. Ranks that share one layer get the same data by design and are not "
        "compared. It cannot find a forgotten `set_epoch`, which gives each epoch the same "
        "order: too few steps of an epoch are sampled."
    ),
    why=(
        "The ranks repeat one rank's work: the global batch is as large as one rank's, and an "
        "epoch takes as long as on one device."
    ),
    fix=(
        "Give the DataLoader a `DistributedSampler`, and call its `set_epoch` in each epoch. In "
        "an iterable dataset, skip by rank. Draw augmentation and noise from a seed for each "
        "rank."
    ),
    sources=(
        "PyTorch, torch.utils.data.distributed.DistributedSampler: a subset of the dataset that is "
        "exclusive to each process",
        "Li et al. 2020, PyTorch Distributed (arXiv 2006.15704), section 2.2: data parallelism",
    ),
    thresholds=(
        Threshold(
            "samples",
            3,
            "samples with equal data needed to judge",
            source="one batch can be the same on purpose",
            old_name="looks",
        ),
        Threshold(
            "share",
            0.5,
            "smallest share of such samples that is judged",
            source="most of them",
        ),
    ),
    runs=Runs(ranks=True),
)


def find_over_ranks(ranks: RanksRecord, limits: Limits) -> Iterator[TrainingFinding]:
    """Yield one finding for each model with equal inputs on several ranks."""
    for one in ranks.same_inputs:
        if one.count < limits["samples"] or one.count < limits["share"] * one.sampled:
            continue
        finding = RULE.finding(
            "",
            f"{on_ranks(one.ranks, max(len(ranks.runs), len(one.ranks)))} called the model on the "
            f"same data, bit for bit, in {one.count} of {one.sampled} sampled steps.",
            cause="same-inputs",
        )
        yield TrainingFinding(finding, (one.steps,), one.model)
