"""GS827: a distribution is sampled in a way that lets no gradient through."""

from __future__ import annotations

from gradscope.records.loop import LoopRecord
from gradscope.rules._loop import LoopFindings, enough, in_steps
from gradscope.rules._rule import CHOSEN, Limits, Rule, Runs, Threshold

RULE = Rule(
    code="GS827",
    name="sample-without-gradient",
    severity="warning",
    summary="`sample()` passes no gradient, and the distribution has `rsample()`",
    what=(
        "Counts the steps that called `sample()` on a distribution of `torch.distributions` that "
        "has `rsample()` and whose parameters require a gradient. It fires if a model made the "
        "sample or takes it as input, or if parameters get no gradient. It is silent if "
        "`log_prob` is called on such a distribution, as policy gradients do."
    ),
    why="The layers that compute the distribution get no gradient through the sample.",
    fix="Use `rsample()`; use `sample()` under `torch.no_grad()` where no gradient is wanted.",
    sources=(
        "PyTorch, torch.distributions: score function and pathwise derivative",
        "Kingma and Welling 2014, arXiv 1312.6114: the reparameterization trick",
    ),
    thresholds=(Threshold("share", 0.9, "share of the steps, at or above which it fires", CHOSEN),),
    runs=Runs(loop=True),
    explains=("GS103", "GS401", "GS804"),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for each kind of distribution."""
    without = any("no-gradient" in one.facts for one in loop.parameters)
    # If two optimizers take turns, each makes half of all steps.
    steps = min((one.steps for one in loop.optimizers if one.steps), default=loop.steps)
    for one in loop.draws:
        if not (one.used or without):
            continue
        if not enough(loop, one.steps) or one.steps < limits["share"] * steps:
            continue
        of = max(steps, one.steps)
        yield RULE.in_loop(
            loop,
            "",
            f"`{one.kind}.sample()` cuts the graph {in_steps(one.steps, of)}: its parameters "
            "require a gradient and get none through the sample.",
            advice="Use `rsample()`, which lets the gradient through.",
            value=float(one.steps),
            threshold=limits["share"],
            cause=one.kind,
            location=one.location,
        )
