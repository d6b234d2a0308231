"""GS620: a first update that is larger than the weights."""

from __future__ import annotations

import math
from statistics import median

from gradscope.records.modules import ParameterStats
from gradscope.rules._history import SampleHistory
from gradscope.rules._reading import is_scale_free, rms
from gradscope.rules._rule import Findings, Limits, Rule, Runs, Threshold
from gradscope.rules._words import number, plural

RULE = Rule(
    code="GS620",
    name="missing-warmup",
    severity="warning",
    summary="the first update is too large for the weights: the learning rate has no warm-up",
    what=(
        "Reads ‖Δw‖/‖w‖ of the first update times √fan_in, for weights of two axes and of "
        "convolutions: an update that is aligned with the layer's input changes its output by "
        "this factor. It fires if the median weight is above the threshold. It does not judge "
        "embeddings, weights that begin near zero, a model with a single weight, nor optimizers "
        "such as SGD, whose step is as large as the gradient."
    ),
    why=(
        "Adam's first update moves every element by the learning rate, whatever the gradient is; "
        "RMSprop's by ten times as much. If the outputs change many times over, the loss jumps in "
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
        "Of 22 healthy trainings (one seed) 0 of 22 fire, and 2 of 2 broken ones are found. Six "
        "networks were trained by AdamW and RMSprop at 60 rates in all: of the 18 trainings that "
        "fire, the loss doubles within 5 steps in 17; of the 42 others in 2. The highest figure "
        "of a healthy script is 3.4."
    ),
    thresholds=(
        Threshold("change", 15, (
            "‖Δw‖/‖w‖ times √fan_in of the median weight, above which it fires"
        )),
        Threshold("small", 0.1, (
            "root mean square of a weight times √fan_in, below which it begins near zero"
        )),
    ),
    runs=Runs(samples=1, first=True, per="model", at_optimizer=True),
    explains=("GS104", "GS205", "GS206", "GS601", "GS602", "GS604"),
    explains_later=("GS103", "GS201", "GS203", "GS513"),
)  # fmt: skip


def find_over_samples(history: SampleHistory, limits: Limits) -> Findings:
    """Yield one finding for the first sample of a model in the steps of an optimizer."""
    if history.count > 1 or history.now is None:
        return
    report = history.now.report
    if not is_scale_free(report.run.optimizer):  # SGD's first update is as large as the gradient
        return
    kinds = {name: module.kinds for module in report.modules for name in module.parameters}
    changes: dict[str, float] = {}
    ratios: list[float] = []
    for name, weight in history.weights.items():
        ratio, inputs = weight.now.update_ratio, _inputs(weight.now, kinds.get(name, ()))
        size = rms(weight.now.value)
        # A weight that begins near zero may move by many times its norm.
        if ratio is None or not inputs or not size or size * math.sqrt(inputs) < limits["small"]:
            continue
        changes[name] = ratio * math.sqrt(inputs)
        ratios.append(ratio)
    if len(changes) < 2 or (usual := median(changes.values())) <= limits["change"]:
        return
    rate = history.now.settings.get("lr")
    at = "" if rate is None else f" at a learning rate of {rate:g}"
    yield RULE.finding(
        max(changes, key=changes.__getitem__),
        f"the update of step {history.now.step}{at} changes the median of "
        f"{plural(len(changes), 'weight')} by {number(median(ratios))} times its norm, and can "
        f"change that layer's output by {number(usual)} times.",
        value=usual,
        limit=limits.of("change"),
    )


def _inputs(weight: ParameterStats, kinds: tuple[str, ...]) -> int:
    """Return the number of inputs that an output adds up; 0 for an embedding, or if unknown."""
    if any(kind.startswith("Embedding") for kind in kinds):
        return 0
    known = len(weight.shape) == 2 or any(kind.startswith("Conv") for kind in kinds)
    return math.prod(weight.shape[1:]) if known else 0
