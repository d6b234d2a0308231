"""GS606: an Adam whose epsilon outweighs the gradient."""

from __future__ import annotations

import math

from gradscope.rules._history import SampleHistory
from gradscope.rules._reading import divides
from gradscope.rules._rule import Findings, Limits, Rule, Runs, Threshold
from gradscope.rules._words import number, percent

RULE = Rule(
    code="GS606",
    name="epsilon-bound",
    severity="warning",
    summary="the optimizer's epsilon is larger than the gradients, and its steps are tiny",
    what=(
        "Compares the root mean square of each weight's gradient, as the optimizer got it, with "
        "the optimizer's epsilon. It fires if epsilon is many times larger for most elements. It "
        "takes the gradient now or its median over earlier samples, whichever is larger: the "
        "second moment forgets slowly."
    ),
    why=(
        "Adam divides by the root of the second moment plus epsilon. If epsilon dominates, the "
        "step is far smaller than the learning rate, by the ratio of gradient to epsilon: the "
        "optimizer acts like SGD with a tiny learning rate."
    ),
    fix=("Lower the optimizer's `eps`, or make gradients larger: clip less, or scale the loss up."),
    sources=(
        "Wortsman et al. 2023, Small-scale proxies for large-scale transformer training "
        "instabilities (arXiv 2309.14322), section 3.4.2: gradients near AdamW's epsilon",
        "Team OLMo 2025, 2 OLMo 2 Furious (arXiv 2501.00656), section 3.4.1: epsilon in AdamW",
        "Kingma and Ba 2015, Adam: algorithm 1",
    ),
    calibration=(
        "Of 44 healthy trainings of 320 to 640 steps (22 networks, two seeds) 0 of 44 fire, and 2 "
        "of 2 broken ones are found. `ratio` could lie anywhere up to 30."
    ),
    thresholds=(
        Threshold(
            "ratio", 10, "epsilon divided by the gradient's root mean square, above which it fires"
        ),
        Threshold("share", 0.5, "share of elements above that ratio, above which it fires"),
    ),
    runs=Runs(samples=5, per="model"),
)


def find_over_samples(history: SampleHistory, limits: Limits) -> Findings:
    """Yield one finding for a model, at the weight whose gradients are furthest below epsilon."""
    sample = history.now
    eps = sample.settings.get("eps") if sample is not None else None
    if sample is None or not eps or not divides(sample.report.run.optimizer):
        return
    total = bound = 0
    worst: tuple[float, str] | None = None
    for name, weight in history.weights.items():
        gradient = weight.now.gradient
        norm = sample.clipped.get(name, gradient.norm if gradient is not None else None)
        if gradient is None or not gradient.norm or not gradient.numel or norm is None:
            continue
        if not 0 < norm < math.inf or not 0 < gradient.norm < math.inf:
            continue
        # Clipping made earlier gradients smaller, too, as it did with this one.
        size = max(norm, weight.gradient.usual * norm / gradient.norm) / gradient.numel**0.5
        total += gradient.numel
        if eps > limits["ratio"] * size:
            bound += gradient.numel
        if worst is None or size < worst[0]:
            worst = (size, name)
    if worst is None or bound <= limits["share"] * total:
        return
    size, name = worst
    yield RULE.finding(
        name,
        f"epsilon is {number(eps)}, the root mean square of this weight's gradient is "
        f"{number(size)}. {percent(bound / total)} of all elements have gradients that far below "
        "epsilon.",
        value=eps / size,
        limit=limits.of("ratio"),
    )
