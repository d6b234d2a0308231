"""GS602: a gradient that jumps far above its history."""

from __future__ import annotations

import math
from itertools import pairwise
from statistics import median

from gradscope.rules._history import SampleHistory, StepHistory
from gradscope.rules._rule import Findings, Limits, Rule, Runs, Threshold
from gradscope.rules._window import Window
from gradscope.rules._words import number

RULE = Rule(
    code="GS602",
    name="gradient-spike",
    severity="warning",
    summary="the gradient's norm jumps far above its values in the steps before",
    what=(
        "Compares the norm of all gradients, before clipping, with the median and nearly all of "
        "the 128 steps before, at every step. In the sampled steps it compares each weight's "
        "gradient with that weight's earlier ones, and names a weight that jumped alone. If the "
        "total jumped, it names the parameter with the largest gradient."
    ),
    why=(
        "One such step undoes many: the weights jump. Adam's second moment stays large for a "
        "thousand steps, in which updates are too small. Gradient spikes come before loss spikes."
    ),
    fix=(
        "Clip the gradient at about the 90th percentile of its norms, and check the batch of "
        "that step. If one layer jumped alone, normalise its input."
    ),
    sources=(
        "trainproof: more than 10 times the running median",
        "Kumar et al. 2025, ZClip (arXiv 2504.02507): 2.5 standard deviations above a moving "
        "average are clipped",
        "Team OLMo 2025, 2 OLMo 2 Furious (arXiv 2501.00656): spikes of the gradient precede those "
        "of the loss; the spike score counts values 7 deviations from a rolling average",
        "Google deep-learning tuning playbook: clip at about the 90th percentile, log unclipped",
    ),
    calibration=(
        "Of 44 healthy trainings of 320 to 640 steps (22 networks, two seeds) 0 of 44 fire, and 3 "
        "of 3 broken ones are found. `beyond` could lie anywhere up to 30; the largest healthy "
        "value of the 44 is 4.7, of an actor-critic of 1300 steps; a small CNN with a momentum of "
        "0.9 reached 8.5, and learned. `layer` could lie anywhere from 15 to "
        "3000; at 9, 1 of 44 fires."
    ),
    thresholds=(
        Threshold(
            "ratio",
            10,
            "the norm divided by the median of the steps before, above which it fires",
            source="trainproof",
        ),
        Threshold(
            "beyond",
            12,
            "the norm divided by the largest before, without the highest 2 %; it must be above "
            "this too",
        ),
        Threshold(
            "deviations",
            7,
            "robust standard deviations above the median of the logarithms; it must be above "
            "this too",
            source="the spike score of OLMo 2",
        ),
        Threshold("history", 32, "earlier steps needed to judge"),
        Threshold("layer", 30, "a weight's norm divided by its own median, above which it fires"),
        Threshold("samples", 12, "earlier samples of a weight needed to judge"),
    ),
    runs=Runs(
        samples=1,
        samples_before="samples",
        steps_before="history",
        metrics=("gradient_norm",),
    ),
    explains=("GS617",),
)
#: The least deviation that is believed: a gradient that repeats itself exactly has none.
_FLOOR = 1e-3


def stands_out(before: Window, norm: float | None, limits: Limits) -> float | None:
    """Return the norm divided by the median of the earlier ones; None if the norm is usual."""
    if norm is None or before.count == 0 or not before.high < norm < math.inf:
        return None
    if before.count < limits["history"] or norm <= limits["beyond"] * before.high:
        return None
    if not before.usual or norm <= limits["ratio"] * before.usual:
        return None
    if before.deviations(norm, _FLOOR) <= limits["deviations"]:
        return None
    return norm / before.usual


def find_over_steps(history: StepHistory, limits: Limits) -> Findings:
    """Yield one finding for an optimizer's steps."""
    before, norm = history.gradient, history.now.gradient_norm
    ratio = stands_out(before, norm, limits)
    if ratio is None or norm is None:
        return
    leap = history.norms.largest()
    largest = ""
    if leap is not None:
        usual = f"{number(leap.norm)}, after a median of {number(leap.usual)}"
        largest = f" The largest part of it is that of `{leap.name}`: {usual}."
    yield RULE.finding(
        history.now.optimizer,
        f"the gradient's norm in step {history.now.step} is {number(norm)}, after a median of "
        f"{number(before.usual)} in the steps before, where nearly all norms were at most "
        f"{number(before.high)}.{largest}",
        value=ratio,
        limit=limits.of("ratio"),
    )


def find_over_samples(history: SampleHistory, limits: Limits) -> Findings:
    """Yield at most one finding per sample, at the weight with the largest jump.

    A sample long after the others is not judged, because gradients may have grown in between.
    """
    if _is_far(history):
        return
    jumps: list[tuple[float, str]] = []
    for name, weight in history.weights.items():
        before, gradient = weight.gradient, weight.now.gradient
        norm = gradient.norm if gradient is not None else None
        if not norm or not before.usual or before.count < limits["samples"]:
            continue
        ratio = norm / before.usual
        if math.isfinite(ratio):
            jumps.append((ratio if norm > limits["beyond"] * before.high else 0.0, name))
    if len(jumps) < 2:
        return
    jumps.sort(reverse=True)
    (ratio, name), rest = jumps[0], jumps[len(jumps) // 2][0]
    if ratio <= limits["layer"] or rest > limits["ratio"]:
        return
    weight = history.weights[name]
    norm = weight.now.gradient.norm if weight.now.gradient is not None else None
    yield RULE.finding(
        name,
        f"its gradient's norm is {number(norm or 0.0)}, after a median of "
        f"{number(weight.gradient.usual)} in the samples before; most other weights' gradients "
        "did not jump.",
        value=ratio,
        limit=limits.of("layer"),
    )


def _is_far(history: SampleHistory) -> bool:
    """Return True if the sample is farther from the last than samples usually are."""
    if history.now is None or len(history.steps) < 2:
        return False
    distances = [after - before for before, after in pairwise(history.steps)]
    return history.now.step - history.steps[-1] > 2 * median(distances)
