"""GS203: activations that grow or shrink from layer to layer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from gradscope.records.report import Report
from gradscope.rules._reading import Layer, layers, rms
from gradscope.rules._rule import Findings, Limits, Rule, Runs, Threshold
from gradscope.rules._words import number, others, plural

RULE = Rule(
    code="GS203",
    name="activation-scale",
    severity="warning",
    summary="the spread of activations drifts over depth, or jumps in one layer",
    what=(
        "Fits a line to the logarithm of the standard deviation of every weighted layer's output "
        "over depth, so that single branches with a small scale do not count. It fires if the "
        "drift from the first to the last layer is beyond the limit, and names the first layer "
        "that has drifted that far. It also fires on a single layer if the standard deviation of "
        "its output is many times the root mean square of its input, unless a batch norm follows "
        "and removes the scale."
    ),
    why=(
        "If the signal shrinks at each layer, the head sees nothing but its bias. If it grows, "
        "activations saturate, and overflow in half precision. Gradients drift in the same way."
    ),
    fix=(
        "Use an initialisation that keeps the variance (Kaiming for ReLU, Xavier for tanh), "
        "normalise between layers, and scale residual branches by the number of blocks."
    ),
    sources=(
        "He et al. 2015, Delving deep into rectifiers",
        "Zhang et al. 2019, Fixup: residual branches without normalisation",
        "TheDeepChecker: standard deviation outside 0.5 to 2.0",
    ),
    calibration=(
        "Of 28 healthy models, fresh and trained, 0 of 28 fire, and 4 of 4 broken programs do. "
        "The nearest healthy drift is a factor of 53 (a fresh AlexNet), the nearest broken one "
        "7e+06; from 100 to 1e+06 nothing changes. The largest healthy gain is 8.3 (the head of a "
        "small T5); from 15 to 50 nothing changes."
    ),
    thresholds=(
        Threshold(
            "drift",
            1e3,
            "factor between the two ends of the line, above which, or below whose inverse, it "
            "fires",
            presets={"deepchecker": None},
        ),
        Threshold("layers", 4, "weighted layers, below which there is no line"),
        Threshold(
            "gain",
            50,
            "standard deviation of a layer's output over the root mean square of its input, above "
            "which it fires; what the bias adds is left out",
            presets={"deepchecker": None},
        ),
        Threshold(
            "lowest",
            None,
            "standard deviation of a layer's output, below which it fires",
            presets={"deepchecker": 0.5},
        ),
        Threshold(
            "highest",
            None,
            "standard deviation of a layer's output, above which it fires",
            presets={"deepchecker": 2.0},
        ),
    ),
    runs=Runs(per="model", calls=True, at_call=True),
    explains=("GS201", "GS506"),
)
#: If more than this share of the drift is outside the layers, they are not its reason.
_MOST = 0.7
_SCALE = (
    "Check the initialisation of this layer's weight: make it smaller (Kaiming, Xavier), or put a "
    "norm after it."
)


def find(report: Report, limits: Limits) -> Findings:
    """Yield a finding on the drift over depth, else on layers where the scale jumps; and on layers
    outside fixed bounds."""
    found = [(layer, layer.spread) for layer in layers(report) if layer.spread]
    drift = list(_drift([(layer, spread) for layer, spread in found if spread], limits))
    yield from drift or _jump(report, limits)
    for name, outside in (("lowest", _below), ("highest", _above)):
        limit = limits.get(name)
        if limit is None:
            continue
        out = [(layer, spread) for layer, spread in found if spread and outside(spread, limit)]
        if out:
            layer, spread = out[0]
            yield RULE.finding(
                layer.name,
                f"its output has a standard deviation of {number(spread)}"
                f"{others(len(out) - 1, 'layer')}.",
                call=layer.call.call,
                value=spread,
                limit=limits.of(name),
            )


def _drift(found: list[tuple[Layer, float]], limits: Limits) -> Findings:
    limit = limits.get("drift")
    if not limit or len(found) < max(2, limits["layers"]):
        return
    drift = _slope([math.log(spread) for _, spread in found]) * (len(found) - 1)
    if abs(drift) <= math.log(limit):
        return
    start = found[0][1]
    grows = drift > 0
    far = [
        pair for pair in found if (pair[1] > start * limit if grows else pair[1] * limit < start)
    ]
    layer, spread = (far or found[-1:])[0]
    gaps = _gaps(found)
    widest = max(gaps, key=gaps.__getitem__) if gaps and grows else ""
    outside = math.fsum(gaps.values())
    yield RULE.finding(
        layer.name,
        f"the activations' standard deviation has {'grown' if grows else 'shrunk'} to "
        f"{number(spread)} here, from {number(start)} at `{found[0][0].name}`, over "
        f"{len(found)} layers."
        + (
            f" The operations between the layers make it grow: {number(math.exp(gaps[widest]))} "
            f"times before `{widest}`."
            if widest and outside > _MOST * drift
            else ""
        ),
        call=layer.call.call,
        value=math.exp(min(drift, 700.0)),
        threshold=limit if grows else 1 / limit,
        source=limits.source("drift"),
    )


def _gaps(found: Sequence[tuple[Layer, float]]) -> dict[str, float]:
    """Return by layer the logarithm of the root mean square of its input over the standard
    deviation of the layer before."""
    gaps = {}
    for (_, before), (layer, _) in pairwise(found):
        size = rms(layer.call.inputs[0].activation) if layer.call.inputs else None
        if size:
            gaps[layer.name] = math.log(size / before)
    return gaps


def _jump(report: Report, limits: Limits) -> Findings:
    limit = limits.get("gain")
    normed = {link.name for link in report.links if "BatchNorm" in link.into}
    biases = {p.name: rms(p.value) or 0.0 for p in report.parameters if len(p.shape) == 1}
    found: dict[str, tuple[float, Layer]] = {}
    for layer in layers(report) if limit is not None else ():
        size = rms(layer.call.inputs[0].activation) if layer.call.inputs else None
        if size and layer.spread and layer.name not in normed:
            bias = min(biases.get(f"{layer.name}.bias", 0.0), layer.spread)
            gain = math.sqrt(layer.spread**2 - bias**2) / size
            if limit is not None and gain > limit:
                found.setdefault(layer.name, (gain, layer))
    if not found or limit is None:
        return
    gain, layer = next(iter(found.values()))
    output = layer.call.outputs[0].activation
    yield RULE.finding(
        layer.name,
        f"the activations' standard deviation jumps to {number(layer.spread)} in this layer, from "
        f"inputs with a root mean square of {number(rms(layer.call.inputs[0].activation))}, over "
        f"{plural(output.numel, 'value')}{others(len(found) - 1, 'layer')}.",
        advice=_SCALE,
        call=layer.call.call,
        value=gain,
        limit=limits.of("gain"),
    )


def _slope(values: list[float]) -> float:
    """Return the slope of the least-squares line through equally spaced values."""
    middle, mean = (len(values) - 1) / 2, sum(values) / len(values)
    over = sum((i - middle) * (value - mean) for i, value in enumerate(values))
    return over / sum((i - middle) ** 2 for i in range(len(values)))


def _below(spread: float, limit: float) -> bool:
    return spread < limit


def _above(spread: float, limit: float) -> bool:
    return spread > limit
