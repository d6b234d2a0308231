"""GS827: a distribution is sampled in a way that lets no gradient through."""

from __future__ import annotations

from collections.abc import Iterator

from gradscope.records.loop import LoopRecord
from gradscope.records.training import TrainingFinding
from gradscope.rules._loop import at, enough, in_steps
from gradscope.rules._rule import CHOSEN, Limits, Rule, Runs, Threshold

RULE = Rule(
    code="GS827",
    name="sample-without-gradient",
    severity="warning",
    summary="`sample()` lets no gradient through, and the distribution has `rsample()`",
    what=(
        "Counts the steps in which `sample()` was called on a distribution of "
        "`torch.distributions` that has `rsample()` and whose parameters want a gradient, and a "
        "model made the sample or was given it. Silent where `log_prob` is called on such a "
        "distribution, as policy gradients do."
    ),
    why="What computes the distribution gets no gradient from what is made of the sample.",
    fix="Use `rsample()`; use `sample()` under `torch.no_grad()` where no gradient is wanted.",
    sources=(
        "PyTorch, torch.distributions: score function and pathwise derivative",
        "Kingma and Welling 2014, arXiv 1312.6114: the reparameterization trick",
    ),
    thresholds=(Threshold("share", 0.9, "share of the steps, from which on it fires", CHOSEN),),
    runs=Runs(loop=True),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> Iterator[TrainingFinding]:
    """One finding for each kind of distribution."""
    for one in loop.draws:
        if not enough(loop, one.steps) or one.steps < limits["share"] * loop.steps:
            continue
        yield at(
            RULE.finding(
                "",
                f"`{one.kind}.sample()` cuts the graph {in_steps(one.steps, loop.steps)}: its "
                "parameters want a gradient, and get none through the sample.",
                advice="Use `rsample()`, which lets the gradient through.",
                value=float(one.steps),
                threshold=limits["share"],
                cause=one.kind,
                location=one.location,
            ),
            loop,
        )
