"""GS846: a divergence that outweighs the reconstruction."""

from __future__ import annotations

from collections.abc import Iterator

from gradscope.records.loop import LoopRecord
from gradscope.records.training import TrainingFinding
from gradscope.rules._loop import at, enough, of_loss
from gradscope.rules._rule import CHOSEN, Limits, Rule, Runs, Threshold
from gradscope.rules._words import number

RULE = Rule(
    code="GS846",
    name="posterior-collapse",
    severity="warning",
    summary="the posterior of a VAE is the prior: the KL term outweighs the reconstruction",
    what=(
        "Reads the two terms of the loss in its graph: an error of the output, and the "
        "divergence of a Gaussian from the standard one, with what each element of them is "
        "multiplied by. It fires where the divergence counts more than a hundred times what "
        "the evidence lower bound has, and the posterior is the prior: means near 0 and "
        "variances near 1."
    ),
    why=(
        "The code says nothing of the input: the decoder answers the mean of the data. Most "
        "often one term is a mean over all elements, and the other a sum."
    ),
    fix=(
        "Reduce both alike: sum both over elements and average over the batch, `F.mse_loss(…, "
        "reduction='sum') / n` beside `kl.sum() / n`."
    ),
    sources=(
        "Kingma and Welling 2013, Auto-encoding variational Bayes, equation 10",
        "Bowman et al. 2016, Generating sentences from a continuous space: the KL term vanishes",
    ),
    thresholds=(
        Threshold(
            "weight",
            100,
            "factor of the KL term over that of the bound",
            CHOSEN,
        ),
        Threshold("mean", 0.1, "root mean square of the means, below which it fires", CHOSEN),
        Threshold("spread", 0.2, "how far the variances are from 1 at most", CHOSEN),
    ),
    calibration=(
        "Silent on the honest programs of tests/rules and on 20 honest trainings that were "
        "written without sight of the rules."
    ),
    runs=Runs(loop=True),
    explains=("GS613",),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> Iterator[TrainingFinding]:
    """One finding."""
    for one in loop.operations:
        if one.kind != "posterior" or not enough(loop, one.count):
            continue
        weight, mean, spread = one.figures
        if weight <= limits["weight"] or mean >= limits["mean"] or spread >= limits["spread"]:
            continue
        yield at(
            RULE.finding(
                "",
                f"the posterior collapsed to the prior: means have a root mean square of "
                f"{number(mean)}, variances are within {number(spread)} of 1. The KL term "
                f"dominates: it counts {number(weight)} times what it does where both terms are "
                "sums, as one is a mean and the other a sum.",
                value=weight,
                limit=limits.of("weight"),
                location=of_loss(loop, one),
            ),
            loop,
        )
