"""GS201: units that hardly any value of the run activates."""

from __future__ import annotations

import math
from collections.abc import Iterator

from gradscope.records.modules import ModuleCall, ParameterStats, UnitActivity
from gradscope.records.report import Report
from gradscope.rules._reading import Tree, complete
from gradscope.rules._rule import OWN, Findings, Limits, Rule, Runs, Threshold
from gradscope.rules._words import percent, plural

RULE = Rule(
    code="GS201",
    name="dead-units",
    severity="warning",
    summary="more than half of a layer's units are on in under 1 % of their values",
    what=(
        "Counts the units of a nonlinearity (channels, or features of the last axis) that are on "
        "in under 1 % of their values, and says how many values of each unit it saw. A ReLU is "
        "off at zero; a smooth one (GELU, SiLU) is off where its slope is nearly zero. Values "
        "from one picture or sentence are alike, so they count as the square root of their "
        "number. A unit with fewer than 16 values cannot be judged alone, so it judges all values "
        "of the layer together, in three ways. It counts a unit as dead if, with its weights and "
        "its bias, no input of the batch's magnitude can activate it. It fires if 99 % of the "
        "layer's values are off. From two values on, it estimates the share of dead units: how "
        "many more are always off than chance would give."
    ),
    why=(
        "A dead ReLU passes no gradient back, so its unit never recovers. The network is then "
        "smaller, and costs as much."
    ),
    fix=(
        "Lower the learning rate, check the layer's biases and the scale of its inputs, or use "
        "an activation with a slope below zero (LeakyReLU, GELU). Then check again with a larger "
        "batch."
    ),
    sources=(
        "SageMaker Debugger, DeadRelu: active less than 1 % of the time, layer above 50 %",
        "TheDeepChecker: 95th percentile below 1e-5, layer above 0.5",
        "AUTOTRAINER: zero-gradient fraction >= 0.7",
        "Sokar et al. 2023, The dormant neuron phenomenon (arXiv 2302.12902)",
    ),
    calibration=(
        "Of 28 healthy models, fresh and trained, 0 of 28 fire, and 5 of 5 broken programs do, "
        "also with 1, 4 or 8 samples; with two samples, one of the five looks like a layer whose "
        "units are seldom on. No mended twin fires with any of these numbers of samples."
    ),
    thresholds=(
        Threshold(
            "share",
            0.5,
            "share of a layer's units that are dead, above which it fires",
            source="SageMaker Debugger, TheDeepChecker",
            presets={"sagemaker": 0.5, "deepchecker": 0.5, "autotrainer": 0.7},
        ),
        Threshold(
            "warned",
            0.7,
            "share in the steps of a run, at or below which it is an info and no warning: a wide "
            "layer learns with half of its units",
            source="AUTOTRAINER",
        ),
        Threshold(
            "samples",
            16,
            "values of each unit, below which the layer is judged over all its values; values of "
            "one sample count as the square root of their number",
        ),
        Threshold(
            "values", 64, "number of values of all units together, below which it estimates nothing"
        ),
    ),
    runs=Runs(samples=10, calls=True),
)
#: A layer is dead if this share of its values is off, as a unit that is on in under 1 % of them.
_SILENT = 0.99


def wants(report: Report, limits: Limits) -> Iterator[str]:
    """Request unit counts if enough rows of the gradient are exactly zero.

    A unit that is dead for the full batch has a zero in the gradient of its layer's bias, or of
    the bias of the norm downstream.
    """
    shares = _shares(report, limits) if complete(report) else ()
    explained = _explained(report)
    if any(_suspicious(p, n, limits) and p.name not in explained for p, n in shares):
        yield "activity"


def find(report: Report, limits: Limits) -> Findings:
    """Yield one finding per nonlinearity, at the first call that shows it."""
    seen: set[tuple[str | None, str]] = set()
    rows = {(call.name, call.call): _rows(call) for call in report.calls}
    for one in report.activity:
        if not one.units or (one.name, one.op) in seen:
            continue
        samples = _independent(one, rows.get((one.name or "", one.call or 0)))
        enough = samples >= limits["samples"]
        share, threshold, message = (
            _each(one, limits) if enough else _of_layer(one, samples, limits)
        )
        if share <= threshold:
            continue
        seen.add((one.name, one.op))
        yield RULE.finding(
            one.name or "",
            message,
            call=one.call,
            value=share,
            threshold=threshold,
            source=limits.source("share") if threshold == limits["share"] else OWN,
            location=one.location,
        )


def find_sampled(report: Report, limits: Limits) -> Findings:
    """Yield one finding per layer with zeros for more than half of its units, in a run's step.

    The units are unknown; over many steps in a row they are mostly the same.
    """
    explained: set[str] = set()
    for p, samples in _shares(report, limits) if complete(report) else ():
        stats, owner = p.gradient, p.name.rpartition(".")[0]
        if samples < limits["samples"]:
            continue
        if stats is None or not stats.numel or stats.zeros == stats.numel or owner in explained:
            continue
        if _suspicious(p, samples, limits):
            explained.add(owner)
            share = (stats.zeros or 0) / stats.numel
            yield RULE.finding(
                owner,
                f"{percent(share)} of the gradient of `{p.name}` is exactly zero: as many units "
                "were off for the full batch.",
                severity=None if share > limits["warned"] else "info",
                value=share,
                limit=limits.of("share"),
            )


def _each(one: UnitActivity, limits: Limits) -> tuple[float, float, str]:
    """Return the share of dead units, its threshold, and a sentence, from each unit's values."""
    share = one.dead / one.units
    return share, limits["share"], f"{_of(one, one.dead)} {_off(one.samples)}."


def _rows(call: ModuleCall) -> int | None:
    """Return the number of samples in a call's output; None without one."""
    shape = call.outputs[0].activation.shape if call.outputs else ()
    return shape[0] if shape else None


def _independent(one: UnitActivity, rows: int | None) -> float:
    """Return the number of independent values per unit, given the samples in the batch."""
    if rows is None or not 0 < rows <= one.samples:
        return one.samples
    return math.sqrt(rows * one.samples)


def _of_layer(one: UnitActivity, samples: float, limits: Limits) -> tuple[float, float, str]:
    """Return the same, from all values of the layer: units that can never activate, else a layer
    that is almost all off, else an estimate.
    """
    off, count = one.off or 0.0, one.units * one.samples
    values = f"{plural(count, 'value')}, {one.samples} of each unit"
    share, threshold = one.asleep / one.units, limits["share"]
    if share > threshold:
        message = (
            f"{_of(one, one.asleep)} can never activate: with these weights and bias no input of "
            f"this magnitude is positive ({values} seen)."
        )
    elif count < limits["values"]:
        return 0.0, threshold, ""
    elif off > _SILENT:
        share, threshold = off, _SILENT
        message = f"{percent(off)} of {values}, are off after {one.op}."
    else:
        share, threshold = _estimated(one, samples), _held_against(samples, threshold)
        message = (
            f"about {percent(share)} of the {plural(one.units, 'unit')} after {one.op} are dead: "
            f"{one.dead} were always off, more than by chance. The estimate uses {values}, "
            f"of which {percent(off)} were off."
        )
    return share, threshold, message


def _of(one: UnitActivity, count: int) -> str:
    share = percent(count / one.units)
    return f"{count} of {plural(one.units, 'unit')} after {one.op} ({share})"


def _estimated(one: UnitActivity, samples: float) -> float:
    """Estimate the share of dead units by a zero-inflated binomial distribution.

    The units that were on at least once show how often a live unit is on, and so how many live ones
    were always off by chance. One value per unit is not enough.
    """
    dead = one.dead / one.units
    if samples < 2 or one.off is None:
        return 0.0
    mean = (1 - one.off) / (1 - dead)  # how often those were on that were on at all
    low, high = 0.0, 1.0
    for _ in range(60):  # mean = p / (1 - (1 - p)^n), which grows with p
        p = (low + high) / 2
        low, high = (p, high) if p < mean * (1 - (1 - p) ** samples) else (low, p)
    by_chance = (1 - low) ** samples
    return max(0.0, (dead - by_chance) / (1 - by_chance)) if by_chance < 1 else 0.0


def _held_against(samples: float, share: float) -> float:
    """Return the threshold for an estimate: higher for fewer values, because an estimate from two
    values errs by a third."""
    return float(share + (1 - share) * 2 ** (-samples / 4))


def _off(samples: int) -> str:
    """Return the words for dead units; with up to a hundred values, under 1 % means never."""
    if samples <= 100:
        return f"were off in all {plural(samples, 'value')} each"
    return f"were on in under 1 % of {plural(samples, 'value')} each"


def _shares(report: Report, limits: Limits) -> Iterator[tuple[ParameterStats, float]]:
    """Yield the parameters with one number, or one row, per unit of a layer with enough values, and
    the number of values per unit.

    A weight counts only if neither its layer nor a norm downstream has a bias, because weights have
    other zeros too, such as at the rim of a picture. The rows of an embedding are not units.
    """
    tree = Tree(report)
    normed = {link.name for link in report.links if "BatchNorm" in link.into}
    values: dict[str, int] = {}
    for call in report.calls:
        for output in call.outputs:
            values[call.name] = values.get(call.name, 0) + output.activation.numel
    for p in report.parameters:
        owner, _, kind = p.name.rpartition(".")
        facts = tree.modules.get(owner)
        if facts is None or not p.shape or any(k.startswith("Embedding") for k in facts.kinds):
            continue
        biased = any(len(tree.known[n].shape) == 1 for n in facts.parameters if n in tree.known)
        alone = kind == "weight" and not biased and owner not in normed
        enough = values.get(owner, 0) >= limits["samples"]
        if enough and p.shape[0] and (len(p.shape) == 1 or alone):
            yield p, values[owner] / p.shape[0]


def _explained(report: Report) -> set[str]:
    """Return parameters whose zero gradients have another cause than dead units."""
    zero = [answer for answer in report.answers if answer.state == "zero"]
    dead = [answer for answer in zero if answer.cause in ("dead-activation", None)]
    names = {name for answer in zero for name in answer.upstream}
    return names - {name for answer in dead for name in answer.upstream}


def _suspicious(parameter: ParameterStats, samples: float, limits: Limits) -> bool:
    """Return True if more units lack a gradient than the allowed dead share explains.

    Units that are active half of the time may also be off in the full batch by chance.
    """
    stats = parameter.gradient
    if stats is None or not stats.zeros or not parameter.requires_grad:
        return False
    share = limits["share"]
    return bool(stats.zeros > (share + (1 - share) * 0.5**samples) * stats.numel)
