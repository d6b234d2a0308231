"""GS620: a first update that is larger than the weights."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import median

from gradscope.records.modules import ParameterStats
from gradscope.records.report import Finding
from gradscope.rules._history import SampleHistory
from gradscope.rules._reading import rms
from gradscope.rules._rule import Limits, Rule, Runs, Threshold
from gradscope.rules._words import number, plural

RULE = Rule(
    code="GS620",
    name="missing-warmup",
    severity="warning",
    summary="the first update is larger than most weights: the learning rate needs a warm-up",
    what=(
        "Reads ‖Δw‖/‖w‖ of the first update, for every weight of two or more axes. It fires if "
        "the median weight moves by more than its own norm. It does not judge embeddings, nor "
        "weights that begin near zero, nor a model with a single weight."
    ),
    why=(
        "Adam's first update moves every element by the learning rate, whatever the gradient is; "
        "RMSprop's by ten times as much. If that replaces the initial weights, the loss jumps in "
        "the next steps, and some models never recover."
    ),
    fix=(
        "Raise the learning rate from near zero over the first hundred steps or more, or lower "
        "it. About a thousandth of a weight's norm per step is usual."
    ),
    sources=(
        "Ma and Yarats 2021, On the adequacy of untuned warmup (arXiv 1910.04209): the first "
        "updates of Adam",
        "Kosson et al. 2024, Analyzing and reducing the need for learning rate warmup in GPT "
        "training (arXiv 2410.23922): the relative size of the first updates",
    ),
    calibration=(
        "Of 22 healthy trainings (one seed) 0 of 22 fire: the median weight's first update is at "
        "most 0.24 of its norm, and at most 0.09 without RMSprop. Six networks were trained by "
        "AdamW and RMSprop at 5 or 6 rates: of 22 trainings that fire, the loss doubles within 5 "
        "steps in 19, and in none of the others. 2 of 2 broken ones are found."
    ),
    thresholds=(
        Threshold("ratio", 1, "the median weight's ‖Δw‖/‖w‖, above which it fires"),
        Threshold("small", 0.1, (
            "root mean square of a weight times √fan_in, below which it begins near zero"
        )),
    ),
    runs=Runs(samples=1, first=True, per="model", at_optimizer=True),
    explains=("GS104", "GS205", "GS206", "GS601", "GS602", "GS604"),
)  # fmt: skip


def find_over_samples(history: SampleHistory, limits: Limits) -> Iterator[Finding]:
    """One finding for the first sample of a model in the steps of an optimizer."""
    if history.count > 1 or history.now is None:
        return
    report = history.now.report
    tables = {
        name
        for module in report.modules
        if any(kind.startswith("Embedding") for kind in module.kinds)
        for name in module.parameters
    }
    ratios = {
        name: weight.now.update_ratio
        for name, weight in history.weights.items()
        if weight.now.update_ratio is not None
        and name not in tables
        and not _begins_near_zero(weight.now, limits["small"])
    }
    limit = limits["ratio"]
    if len(ratios) < 2 or (usual := median(ratios.values())) <= limit:
        return
    rate = history.now.settings.get("lr")
    at = "" if rate is None else f" at a learning rate of {rate:g}"
    larger = sum(ratio > limit for ratio in ratios.values())
    times = "" if limit == 1 else f"{number(limit)} times "
    yield RULE.finding(
        max(ratios, key=ratios.__getitem__),
        f"the update of step {history.now.step}{at} changes {larger} of "
        f"{plural(len(ratios), 'weight')} by more than {times}their norm; the median weight by "
        f"{number(usual)} times its norm.",
        value=usual,
        limit=limits.of("ratio"),
    )


def _begins_near_zero(weight: ParameterStats, small: float) -> bool:
    size = rms(weight.value)
    return size is None or size * math.sqrt(math.prod(weight.shape[1:])) < small

