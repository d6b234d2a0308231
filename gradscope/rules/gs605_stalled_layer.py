"""GS605: a layer that stopped moving while the rest trains on."""

from __future__ import annotations

from gradscope.records.tensors import finite_or_none
from gradscope.rules._history import ParameterHistory, SampleHistory
from gradscope.rules._rule import Findings, Limits, Rule, Runs, Threshold
from gradscope.rules._words import number

RULE = Rule(
    code="GS605",
    name="stalled-layer",
    severity="warning",
    summary="a weight has stopped moving, while the others move on",
    what=(
        "Compares ‖Δw‖/‖w‖ of every weight of two or more axes with its earlier pace. It fires if "
        "this weight slowed down far more than the median of the other weights: a schedule that "
        "slows all of them does not count. It does not judge weights that no longer require a "
        "gradient, nor weights that have paused before and moved again, such as experts and heads "
        "that take turns."
    ),
    why=(
        "The layer no longer learns, while everything around it changes. Its inputs died or "
        "saturated, a later phase of the script cut its path, or its parameter group lost its "
        "learning rate."
    ),
    fix=(
        "Look at the layer's activations and gradients at the step where it stopped, and at the "
        "learning rate of its parameter group. If that is intended, freeze the layer with "
        "`requires_grad_(False)`."
    ),
    sources=(
        "Raghu et al. 2017, SVCCA (arXiv 1706.05806): layers converge bottom up, and slowly",
        "SageMaker Debugger, UnchangedTensor",
        "TorchLens: a spread of 38 times inside one healthy model",
    ),
    calibration=(
        "Of 44 healthy trainings of 320 to 640 steps (22 networks, two seeds) 0 of 44 fire, and 2 "
        "of 2 broken ones are found. `fall` could lie anywhere up to 0.01; at 0.1, 2 of 44 fire."
    ),
    thresholds=(
        Threshold(
            "fall",
            1e-3,
            "fires if the weight's pace, divided by its earlier pace, is below this share of that "
            "of the other weights",
        ),
        Threshold("samples", 8, "earlier samples needed to judge"),
    ),
    runs=Runs(samples=8, samples_before="samples"),
)


def find_over_samples(history: SampleHistory, limits: Limits) -> Findings:
    """Yield one finding per weight."""
    falls = []
    for name, weight in history.weights.items():
        pace = _pace(weight)
        # Heads and experts that take turns rest now and then.
        if pace is None or weight.woke or weight.pace <= 0:
            continue
        if weight.update.count >= limits["samples"]:
            falls.append((pace / weight.pace, name))
    if len(falls) < 3:
        return
    falls.sort()
    usual = falls[len(falls) // 2][0]
    if usual <= 0:
        return
    for fall, name in falls:
        if fall >= limits["fall"] * usual:
            return
        weight = history.weights[name]
        yield RULE.finding(
            name,
            f"it moves by {number(fall * weight.pace)} of its norm per step, and moved by "
            f"{number(weight.pace)} before. The median weight still moves at {number(usual)} of "
            "its earlier pace.",
            value=fall / usual,
            limit=limits.of("fall"),
        )


def _pace(weight: ParameterHistory) -> float | None:
    """Return the update ratio; None if unknown, or for a zero gradient, which GS103 reports."""
    now = weight.now
    if now.moved is False:
        zero = now.gradient is not None and now.gradient.zeros == now.gradient.numel
        return None if zero else 0.0
    ratio = now.update_ratio
    return finite_or_none(ratio)
