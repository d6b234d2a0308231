"""GS701: parameters that should be the same on all ranks, and are not."""

from __future__ import annotations

from collections.abc import Iterator

from gradscope.records.ranks import GRADIENT, PARAMETER, RanksRecord
from gradscope.records.training import TrainingFinding
from gradscope.rules._ranks import (
    difference,
    named,
    on_ranks,
    since,
    starts_before,
    the_others,
    wrapper,
)
from gradscope.rules._rule import Limits, Rule, Runs

RULE = Rule(
    code="GS701",
    name="unequal-parameters",
    severity="error",
    summary="parameters differ between ranks that should hold the same ones",
    what=(
        "Compares the parameters of ranks that hold the same shard of a model, bit for bit, in the "
        "sampled steps: replicas under DistributedDataParallel, shards of DTensors by their "
        "placements, and models without a wrapper in a process group. If gradients differed in an "
        "earlier sample, GS702 reports it. Models in pipeline stages are not compared. Without a "
        "wrapper it is a warning: each rank may train its own model on purpose."
    ),
    why=(
        "Gradients of different weights are averaged, which trains none of the models. The "
        "checkpoint of one rank differs from the others."
    ),
    fix=(
        "Wrap the model in DistributedDataParallel after it was loaded: this broadcasts rank 0's "
        "weights. Later, change weights on all ranks alike: draw them from one seed, or "
        "broadcast them."
    ),
    sources=(
        "Li et al. 2020, PyTorch Distributed (arXiv 2006.15704), section 3.1: replicas start equal "
        "and get equal gradients, and so stay equal",
        "PyTorch issue 48188: DDP fails to sync params across processes on construction",
    ),
    runs=Runs(ranks=True),
)


def find_over_ranks(ranks: RanksRecord, limits: Limits) -> Iterator[TrainingFinding]:
    """Yield one finding for each model, at the first step in which copies differ."""
    for one in ranks.differences:
        gradients = difference(ranks, one.model, GRADIENT)
        if one.kind != PARAMETER or not one.names:
            continue
        if gradients is not None and starts_before(gradients, one):
            continue
        alone = not wrapper(ranks, one.model)
        message = (
            f"{named(one)} on {on_ranks(one.ranks, one.compared)} differ{_s(one.names)} from "
            f"{the_others(one)} {since(one)}"
        )
        if alone and gradients is not None:
            message += "; gradients are not averaged either, so each rank trains its own model"
        finding = RULE.finding(
            one.names[0],
            f"{message}.",
            severity="warning" if alone else None,
            advice=None if alone else _WRAPPED,
            value=float(len(one.ranks)),
            cause="apart",
        )
        yield TrainingFinding(finding, (one.steps,), one.model)


_WRAPPED = (
    "Change the weights of a wrapped model on all ranks alike: draw them from one seed, or "
    "broadcast them."
)


def _s(names: tuple[str, ...]) -> str:
    return "s" if len(names) == 1 else ""
