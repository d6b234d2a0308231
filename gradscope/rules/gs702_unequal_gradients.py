"""GS702: gradients that were not averaged over the ranks."""

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
    code="GS702",
    name="unequal-gradients",
    severity="error",
    summary="the optimizers of two ranks get different gradients for the same parameters",
    what=(
        "Compares, bit for bit, the gradients that optimizers get on ranks with the same part of "
        "a model: all-reduce leaves the same numbers on each. Without a wrapper it is a warning. "
        "If parameters differed before, GS701 reports that instead."
    ),
    why=(
        "Every rank makes its own step: replicas diverge, and each learns only from its share of "
        "the data."
    ),
    fix=(
        "Run the last forward and backward before a step outside of `no_sync`, and call the "
        "wrapper, not its `module`. Without a wrapper, average gradients before the step."
    ),
    sources=(
        "PyTorch, DistributedDataParallel.no_sync: gradients are synchronised in the first "
        "forward-backward pass after the context",
        "Li et al. 2020, PyTorch Distributed (arXiv 2006.15704), section 3.2.4: gradient "
        "accumulation",
    ),
    runs=Runs(ranks=True),
)


def find_over_ranks(ranks: RanksRecord, limits: Limits) -> Iterator[TrainingFinding]:
    """Yield one finding for each model, at the first step in which its gradients differ."""
    for one in ranks.differences:
        if one.kind != GRADIENT or not one.names:
            continue
        alone = not wrapper(ranks, one.model)
        parameters = difference(ranks, one.model, PARAMETER)
        if alone and parameters is not None and not starts_before(one, parameters):
            continue
        finding = RULE.finding(
            one.names[0],
            f"{named(one)} on {on_ranks(one.ranks, one.compared)} differ from {the_others(one)} "
            f"{since(one)}: the optimizer used them before they were averaged.",
            severity="warning" if alone else None,
            value=float(len(one.ranks)),
            cause="not-averaged",
        )
        yield TrainingFinding(finding, (one.steps,), one.model)
