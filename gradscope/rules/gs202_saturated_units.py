"""GS202: sigmoids, tanhs and softmaxes at their flat ends."""

from __future__ import annotations

from collections.abc import Iterator

from gradscope.records.modules import UnitActivity
from gradscope.records.report import Finding, Report
from gradscope.rules._reading import complete, layers, rms
from gradscope.rules._rule import Findings, Limits, Rule, Threshold
from gradscope.rules._words import percent, plural

RULE = Rule(
    code="GS202",
    name="saturated-units",
    severity="warning",
    summary="more than half of a layer's sigmoid, tanh or softmax units are saturated",
    what=(
        "Counts the units of a sigmoid, a tanh or a softmax whose output was saturated in almost "
        "every value of the run, and says how many values it saw. If a unit has fewer than 16 "
        "values, it judges all values of the layer together."
    ),
    why=(
        "A saturated unit has a derivative of nearly zero: everything upstream gets no useful "
        "gradient. Attention that always picks one token cannot learn to pick another."
    ),
    fix=(
        "Scale the input: normalise it, divide attention scores by the root of the head "
        "size, start from smaller weights, or put a norm before the activation."
    ),
    sources=(
        "SageMaker Debugger, SaturatedActivation: tanh input beyond 9.4999, sigmoid input below "
        "-23 or above 16.99999, layer above 50 %",
        "Karpathy, makemore part 3: tanh output beyond 0.97",
        "Vaswani et al. 2017, Attention is all you need, section 3.2.1, on the scale of scores",
    ),
    calibration=(
        "Of 28 healthy models, fresh and trained, 1 of 28 fires (gates that training has "
        "closed), and 4 of 4 broken programs do, also with 1, 2, 4 or 8 samples; that one fires "
        "at any share from 0.0005 to 0.7."
    ),
    thresholds=(
        Threshold(
            "share",
            0.5,
            "share of a layer's units that are saturated, above which it fires",
            source="SageMaker Debugger",
            presets={"sagemaker": 0.5},
        ),
        Threshold(
            "near",
            0.5,
            "share of all values of a sigmoid or a tanh whose slope is under 6 % of the steepest "
            "(a tanh beyond 0.97), above which it fires",
            presets={"sagemaker": None},
        ),
        Threshold(
            "samples", 16, ("values of each unit, below which the layer is judged over all values")
        ),
        Threshold(
            "values",
            16,
            "values of all units together needed to judge",
        ),
        Threshold("distributions", 8, "distributions of a softmax needed to judge"),
        Threshold(
            "input",
            3,
            "root mean square below which units are not counted: of the input of a sigmoid, a "
            "tanh or a softmax, or of the output of a layer that no norm follows",
        ),
    ),
    # A full sample counts the units.
    runs=None,
)
_BOUNDED = ("Tanh", "Sigmoid", "Softmax", "Softmax2d", "Hardtanh", "Hardsigmoid")
#: Functions that may follow a layer and have no upper end.
_UNBOUNDED = ("ReLU", "LeakyReLU", "PReLU", "ELU", "GELU", "SiLU", "Hardswish", "MaxPool2d")
#: How near to its ends a bounded activation's root mean square must be to count its units.
_ENDS = 0.97
#: The root mean square of a tanh's values of which half are beyond 0.97, and the others at 0.4.
_RECURRENT = 0.75


def wants(report: Report, limits: Limits) -> Iterator[str]:
    """Request unit counts if a bounded activation may get large values."""
    if complete(report) and (_large_inputs(report, limits) or _flat_values(report)):
        yield "activity"


def find(report: Report, limits: Limits) -> Findings:
    """Yield one finding per activation, at the first call that shows it."""
    seen: set[tuple[str | None, str]] = set()
    for one in report.activity:
        if not _enough(one, limits) or (one.name, one.op) in seen:
            continue
        found = _units(one, limits) or _values(one, limits)
        if found is not None:
            seen.add((one.name, one.op))
            yield found


def _enough(one: UnitActivity, limits: Limits) -> bool:
    """Return True if there is enough to judge; a softmax's units are its distributions."""
    if one.op == "softmax":
        return one.units > 0 and one.units >= limits["distributions"]
    return one.units > 0 and one.units * one.samples >= limits["values"]


def _units(one: UnitActivity, limits: Limits) -> Finding | None:
    """Judge the units that are nearly always flat; with few values per unit, judge the values."""
    share, message = _fact(one, full=one.samples < limits["samples"])
    if share <= limits["share"]:
        return None
    return RULE.finding(
        one.name or "",
        message,
        call=one.call,
        value=share,
        limit=limits.of("share"),
        location=one.location,
    )


def _fact(one: UnitActivity, *, full: bool) -> tuple[float, str]:
    """Return the saturated share and a sentence: by distribution, by value, or by unit."""
    share = one.saturated / one.units
    count = f"{one.saturated} of {one.units:,}"
    if one.op == "softmax":
        what = f"{count} distributions of its softmax ({percent(share)})"
        return share, f"{what} put all their weight on one entry."
    if full:
        share = one.flat or 0.0
        what = f"{percent(share)} of the values of its {one.op}"
        return share, f"{what} are saturated, over {_over(one)}."
    what = f"{count} units of {one.op} ({percent(share)})"
    return share, f"{what} were saturated, over {plural(one.samples, 'value')} each."


def _over(one: UnitActivity) -> str:
    return f"{plural(one.units, 'unit')} of {plural(one.samples, 'value')} each"


def _values(one: UnitActivity, limits: Limits) -> Finding | None:
    """Judge the nearly flat values of all units together."""
    limit = limits.get("near")
    if limit is None or one.near is None or one.near <= limit:
        return None
    return RULE.finding(
        one.name or "",
        f"{percent(one.near)} of the values of its {one.op} are nearly flat, over {_over(one)}.",
        call=one.call,
        value=one.near,
        limit=limits.of("near"),
        location=one.location,
    )


def _large_inputs(report: Report, limits: Limits) -> bool:
    """Return True if large values enter an activation, or may enter a functional one, whose calls
    are not recorded."""
    limit = limits["input"]
    normed = {link.name for link in report.links if "BatchNorm" in link.into}
    if any(
        (rms(call.inputs[0].activation) or 0) > limit / 2
        for call in report.calls
        if call.type in _BOUNDED and call.inputs
    ):
        return True
    following = {call.order - 1: call.type for call in report.calls}
    found = layers(report)[:-1]  # the last one's scores go to the loss
    return any(
        (rms(layer.call.outputs[0].activation) or 0) > limit
        for layer in found
        if layer.name not in normed and following.get(layer.call.order) not in _UNBOUNDED
    )


def _flat_values(report: Report) -> bool:
    """Return True if a layer's inputs lie at -1 and 1, or at 0 and 1, and nowhere between, or if a
    recurrent layer returns many values near to these, as its states are.
    """
    recurrent = {facts.name for facts in report.modules if {"RNN", "RNNCell"} & {*facts.kinds}}
    if any(
        _RECURRENT < (rms(call.outputs[0].activation) or 0) <= 1
        for call in report.calls
        if call.name in recurrent and call.outputs
    ):
        return True
    for layer in layers(report):
        stats = layer.call.inputs[0].activation if layer.call.inputs else None
        size = rms(stats)
        if stats is None or not size or stats.min is None or stats.max is None or not stats.mean:
            continue
        if -1 <= stats.min < 0 < stats.max <= 1 and size > _ENDS:
            return True
        if 0 <= stats.min < 0.5 < stats.max <= 1 and size**2 > _ENDS * stats.mean:
            return True
    return False
