"""GS201: units that hardly a value of the run woke."""

from __future__ import annotations

from collections.abc import Iterator

from gradscope.records.modules import ParameterStats
from gradscope.records.report import Finding, Report
from gradscope.rules._reading import Tree, complete
from gradscope.rules._rule import Limits, Rule, Runs, Threshold
from gradscope.rules._words import percent, plural

RULE = Rule(
    code="GS201",
    name="dead-units",
    severity="warning",
    summary="more than half of a layer's units are on in under 1 % of their values",
    what=(
        "Counts the units (channels, or features of the last axis) behind a nonlinearity that are "
        "on in under 1 % of their values, and says on how many values of each unit that rests. Off "
        "is a rectifier at zero, and a smooth one (GELU, SiLU) where its slope is next to nothing. "
        "One batch cannot prove a unit dead: with few values the rule stays silent."
    ),
    why=(
        "A dead ReLU passes no gradient back, so its unit never comes back by itself; what is left "
        "is a smaller network that costs as much."
    ),
    fix=(
        "Lower the learning rate, check the biases and the scale of the inputs in front of the "
        "layer, or use an activation with a slope below zero (LeakyReLU, GELU); then look again "
        "with a larger batch."
    ),
    sources=(
        "SageMaker Debugger, DeadRelu: active less than 1 % of the time, layer above 50 %",
        "TheDeepChecker: 95th percentile below 1e-5, layer above 0.5",
        "AUTOTRAINER: zero-gradient fraction >= 0.7",
        "Sokar et al. 2023, The dormant neuron phenomenon (arXiv 2302.12902)",
    ),
    calibration=(
        "Of 28 healthy models, fresh and trained, 0 of 28 fire, and 4 of 4 broken programs do. "
        "Asking for fewer values changes nothing here; asking for 48 loses one broken program."
    ),
    thresholds=(
        Threshold(
            "share",
            0.5,
            "dead units of a layer, above which it fires",
            source="SageMaker Debugger, TheDeepChecker",
            presets={"sagemaker": 0.5, "deepchecker": 0.5, "autotrainer": 0.7},
        ),
        Threshold("samples", 16, "values of each unit, below which nothing is said"),
    ),
    runs=Runs(samples=10),
)


def wants(report: Report, limits: Limits) -> Iterator[str]:
    """A look at units, where a row of the gradient is exactly zero for so many of them.

    A unit that is dead for the whole batch has a zero in the gradient of its layer's bias, or of
    the bias of the norm behind it.
    """
    shares = _shares(report, limits) if complete(report) else ()
    explained = _explained(report)
    if any(_suspicious(p, limits) and p.name not in explained for p in shares):
        yield "activity"


def find(report: Report, limits: Limits) -> Iterator[Finding]:
    """One finding per nonlinearity, at the first call that shows it."""
    seen: set[tuple[str | None, str]] = set()
    for one in report.activity:
        enough = one.units and one.samples >= limits["samples"]
        if not enough or one.dead <= limits["share"] * one.units or (one.name, one.op) in seen:
            continue
        seen.add((one.name, one.op))
        yield RULE.finding(
            one.name or "",
            f"{one.dead} of {plural(one.units, 'unit')} behind {one.op} "
            f"({percent(one.dead / one.units)}) {_off(one.samples)}.",
            call=one.call,
            value=one.dead / one.units,
            threshold=limits["share"],
            source=limits.source("share"),
            location=one.location,
        )


def find_sampled(report: Report, limits: Limits) -> Iterator[Finding]:
    """Of a step in a run: one finding per layer with zeros for more than half of its units.

    Which units they are is not known; over many steps in a row they are mostly the same.
    """
    told: set[str] = set()
    for p in _shares(report, limits) if complete(report) else ():
        stats, owner = p.gradient, p.name.rpartition(".")[0]
        if stats is None or not stats.numel or stats.zeros == stats.numel or owner in told:
            continue
        if _suspicious(p, limits):
            told.add(owner)
            share = (stats.zeros or 0) / stats.numel
            yield RULE.finding(
                owner,
                f"{percent(share)} of the gradient of `{p.name}` is exactly zero: as many units "
                "behind it were off for the whole batch.",
                value=share,
                threshold=limits["share"],
                source=limits.source("share"),
            )


def _off(samples: int) -> str:
    """What a dead unit is; of up to a hundred values 1 % is none."""
    if samples <= 100:
        return f"were off in all {plural(samples, 'value')} each"
    return f"were on in under 1 % of {plural(samples, 'value')} each"


def _shares(report: Report, limits: Limits) -> Iterator[ParameterStats]:
    """The parameters with one number, or one row, per unit of a layer that gave enough values.

    A weight counts where neither its layer nor a norm behind it has a bias: it has other zeros too,
    as at the rim of a picture. A table's rows are not units.
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
        enough = values.get(owner, 0) >= limits["samples"] * p.shape[0]
        if enough and (len(p.shape) == 1 or alone):
            yield p


def _explained(report: Report) -> set[str]:
    """What has a gradient of zeros for another reason than dead units."""
    zero = [answer for answer in report.answers if answer.state == "zero"]
    dead = [answer for answer in zero if answer.cause in ("dead-activation", None)]
    names = {name for answer in zero for name in answer.behind}
    return names - {name for answer in dead for name in answer.behind}


def _suspicious(parameter: ParameterStats, limits: Limits) -> bool:
    stats = parameter.gradient
    if stats is None or not stats.zeros or not parameter.requires_grad:
        return False
    return stats.zeros > limits["share"] * stats.numel
