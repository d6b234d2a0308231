"""GS707: a rank for which all others wait."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from gradscope.records.ranks import RanksRecord
from gradscope.records.training import TrainingFinding
from gradscope.rules._rule import Limits, Rule, Runs, Threshold
from gradscope.rules._words import percent
from gradscope.typeset.numbers import seconds

RULE = Rule(
    code="GS707",
    name="straggler",
    severity="warning",
    summary="one rank is much slower, and the others wait for it in every step",
    what=(
        "Compares the ranks' median time from the end of a step to the next backward: data, "
        "forward and loss, before anything waits for another rank. It fires if a rank is slow in "
        "three of four steps; a machine that is briefly busy is not. The time of a full step is "
        "the same on all ranks, as backward ends together. Sampled steps do not count. It cannot "
        "judge FSDP, where forward waits too, nor the stages of a pipeline."
    ),
    why="The run is as slow as its slowest rank, and all other devices are idle meanwhile.",
    fix=(
        "Look at that rank's machine: the data loader's workers and disk, other programs, the "
        "clock of its device, the length of its samples."
    ),
    sources=(
        "NVIDIA Resiliency Extension, straggler detection: relative scores of the sections of a "
        "step, the best rank's time over a rank's",
        "SPDL, The Straggler: slow data loading keeps a rank from the all-reduce",
    ),
    thresholds=(
        Threshold(
            "ratio",
            1.5,
            "a rank's time divided by the median of the others, in three of four steps, above "
            "which it fires",
            source="a relative score under two thirds",
        ),
        Threshold(
            "share",
            0.1,
            "smallest share of a step that the others wait",
            source="a smaller wait is not worth a search",
        ),
    ),
    runs=Runs(ranks=True),
)


def find_over_ranks(ranks: RanksRecord, limits: Limits) -> Iterator[TrainingFinding]:
    """Yield one finding for the slowest rank."""
    if len(ranks.paces) < 2:
        return
    own = {rank: pace.own for rank, pace in ranks.paces.items()}
    slowest = max(own, key=own.__getitem__)
    usual = statistics.median(mine for rank, mine in own.items() if rank != slowest)
    pace = ranks.paces[slowest]
    step, waits = pace.step, pace.own - usual
    if pace.least <= limits["ratio"] * usual or waits <= limits["share"] * step:
        return
    finding = RULE.finding(
        "",
        f"rank {slowest} of {len(ranks.runs)} needs {seconds(own[slowest])} a step before its "
        f"backward, the others {seconds(usual)}: they wait {percent(min(1.0, waits / step))} of "
        "the time.",
        value=own[slowest] / usual if usual else None,
        threshold=limits["ratio"],
        source=limits.source("ratio"),
        cause="slow",
    )
    steps = max(run.steps for run in ranks.runs)
    yield TrainingFinding(finding, ((1, max(1, steps)),))
