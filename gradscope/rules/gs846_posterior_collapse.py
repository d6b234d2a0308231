"""GS846: a divergence that outweighs the reconstruction."""

from __future__ import annotations

from gradscope.records.loop import LoopRecord
from gradscope.rules._loop import LoopFindings, enough, of_loss
from gradscope.rules._rule import CHOSEN, SILENT_ON_HONEST, Limits, Rule, Runs, Threshold
from gradscope.rules._words import number

RULE = Rule(
    code="GS846",
    name="posterior-collapse",
    severity="warning",
    summary="posterior collapse of a VAE: the KL term outweighs the reconstruction",
    what=(
        "Reads two terms of the loss in its graph, and the factor of each: the reconstruction "
        "error, and the KL divergence of a Gaussian from the standard one. It fires if the "
        "divergence counts more than a hundred times as much as in the evidence lower bound, and "
        "the posterior equals the prior: means near 0 and variances near 1."
    ),
    why=(
        "The code holds no information on the input: the decoder gives the mean of the data. "
        "Most often one term is a mean over all elements, and the other a sum."
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
            "factor of the KL term divided by that of the bound, above which it fires",
            CHOSEN,
        ),
        Threshold("mean", 0.1, "root mean square of the means, below which it fires", CHOSEN),
        Threshold("spread", 0.2, "distance of the variances from 1, below which it fires", CHOSEN),
    ),
    calibration=SILENT_ON_HONEST,
    runs=Runs(loop=True),
    explains=("GS613",),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding."""
    for one in loop.operations:
        if one.kind != "posterior" or not enough(loop, one.count):
            continue
        weight, mean, spread = one.figures
        if weight <= limits["weight"] or mean >= limits["mean"] or spread >= limits["spread"]:
            continue
        yield RULE.in_loop(
            loop,
            "",
            "the posterior collapsed to the prior: means have a root mean square of "
            f"{number(mean)}, variances are within {number(spread)} of 1. The KL term counts "
            f"{number(weight)} times too much: one term is a mean, the other a sum.",
            value=weight,
            limit=limits.of("weight"),
            location=of_loss(loop, one),
        )
