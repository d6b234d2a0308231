"""GS304: steps that half-precision weights round away."""

from __future__ import annotations

import math

from gradscope.rules._history import ParameterHistory, SampleHistory
from gradscope.rules._reading import is_scale_free, middle, rms
from gradscope.rules._rule import CHOSEN, Findings, Limits, Rule, Runs, Threshold
from gradscope.rules._words import number

RULE = Rule(
    code="GS304",
    name="rounded-updates",
    severity="warning",
    summary="weights in half precision round the optimizer's steps away",
    what=(
        "For weights in bfloat16 or float16, compares the optimizer's step with the spacing of "
        "numbers at the weights' root mean square. The step is the learning rate for optimizers "
        "like Adam, and the learning rate times the gradient for SGD. It fires if the median "
        "weight's step is at most that spacing in sample after sample."
    ),
    why=(
        "bfloat16 has 8 significant bits: a step below 1/512 of a weight does not change it. "
        "Small steps are lost, and training stalls long before the gradients vanish."
    ),
    fix=(
        "Keep the weights in float32 and compute in bfloat16: `torch.autocast('cpu', "
        "dtype=torch.bfloat16)` instead of `model.bfloat16()`."
    ),
    sources=(
        "Micikevicius et al. 2018, Mixed precision training: a master copy of weights in fp32",
        "Zamirai et al. 2020, Revisiting bfloat16 training (arXiv 2010.06192)",
    ),
    thresholds=(
        Threshold("steps", 2, "the step divided by half the spacing, below which it fires",
                  CHOSEN),
    ),
    runs=Runs(samples=5, per="model"),
    explains=("GS104", "GS603", "GS605", "GS612", "GS613"),
)  # fmt: skip
#: Half the spacing of the numbers around 1.
_HALF = {"bfloat16": 2.0**-9, "float16": 2.0**-12}


def find_over_samples(history: SampleHistory, limits: Limits) -> Findings:
    """Yield at most one finding for a model."""
    sample = history.now
    rate = sample.settings.get("lr") if sample is not None else None
    if sample is None or not rate:
        return
    kind = sample.report.run.optimizer
    ratios = {name: _ratio(one, rate, kind) for name, one in history.weights.items()}
    found = {name: ratio for name, ratio in ratios.items() if ratio is not None}
    usual = middle(found.values())
    if usual is None or usual >= limits["steps"]:
        return
    name = min(found, key=lambda one: abs(found[one] - usual))
    dtype = history.weights[name].now.value.dtype
    yield RULE.finding(
        name,
        f"the weights are {dtype}, and a step of lr={rate:g} moves the median weight by "
        f"{number(usual)} of half the spacing of {dtype} numbers: rounding loses much "
        "of each step.",
        value=usual,
        limit=limits.of("steps"),
    )


def _ratio(weight: ParameterHistory, rate: float, kind: str | None) -> float | None:
    """Return the step divided by half the spacing at the weight's size; None for a weight in full
    precision."""
    value, gradient = weight.now.value, weight.now.gradient
    half, size = _HALF.get(value.dtype.removeprefix("torch.")), rms(value)
    slope = 1.0 if is_scale_free(kind) else rms(gradient)
    if half is None or not size or not slope or not math.isfinite(slope):
        return None
    return rate * slope / (half * size)
