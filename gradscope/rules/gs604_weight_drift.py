"""GS604: a weight that grows and grows."""

from __future__ import annotations

import math
from itertools import pairwise

from gradscope.rules._history import SampleHistory
from gradscope.rules._rule import Findings, Limits, Rule, Runs, Threshold
from gradscope.rules._words import number

#: Number of samples in a row that must rise.
_RISING = 8
RULE = Rule(
    code="GS604",
    name="weight-drift",
    severity="warning",
    summary="a weight's norm has grown many times over and still grows",
    what=(
        "Follows the norm of every weight of two or more axes over the sampled steps. It fires if "
        "the norm rose in each of the last eight samples and is many times its first value. If a "
        "weight began smaller than an initialisation that keeps the variance, it is compared with "
        "that initialisation. So weights that start at zero on purpose do not count at first."
    ),
    why=(
        "Logits and activations grow with the weight: softmax and sigmoid saturate, and half "
        "precision overflows. Before a norm layer, the same learning rate moves the weight less "
        "and less."
    ),
    fix=(
        "Use weight decay on that weight (AdamW, 0.01 or more), lower its learning rate, or "
        "search for a loss without a lower bound, which rewards size."
    ),
    sources=(
        "Merrill et al. 2021, Effects of parameter norm growth during transformer training "
        "(arXiv 2010.09697): healthy norms grow as the root of the steps",
        "van Laarhoven 2017, L2 regularization versus batch and weight normalization",
        "TheDeepChecker: mean absolute weight > 1e8, or growth >= 2 in each of 5 windows",
    ),
    calibration=(
        "Of 44 healthy trainings of 320 to 640 steps (22 networks, two seeds) 0 of 44 fire, and 2 "
        "of 2 broken ones are found. `factor` could lie anywhere from 5 to 30; at 3, 2 of 44 fire."
    ),
    thresholds=(
        Threshold("factor", 10, "the norm divided by the first one, above which it fires"),
        Threshold(
            "growth", 1.1, ("growth over the last eight samples, below which the growth has ended")
        ),
    ),
    runs=Runs(samples_before=_RISING),
)


def find_over_samples(history: SampleHistory, limits: Limits) -> Findings:
    """Yield one finding per weight."""
    for name, weight in history.weights.items():
        norm, first = weight.now.value.norm, weight.first
        if not norm or first is None or weight.value.count < _RISING:
            continue
        # A weight with this norm keeps the variance, if each output sums over its inputs.
        start = max(first, weight.now.shape[0] ** 0.5)
        if not limits["factor"] * start < norm < math.inf:
            continue
        last = [*list(weight.value.values)[-_RISING:], norm]
        rises = all(a < b for a, b in pairwise(last))
        if rises and norm > limits["growth"] * last[0]:
            yield RULE.finding(
                name,
                f"its norm has grown to {number(norm)}, from {number(first)} at step "
                f"{weight.since}, and rose in each of the last {_RISING} samples.",
                value=norm / start,
                limit=limits.of("factor"),
            )
