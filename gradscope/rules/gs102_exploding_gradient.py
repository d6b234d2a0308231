"""GS102: gradients that grow towards the first layers, or jump from step to step."""

from __future__ import annotations

import math
from statistics import median

from gradscope.records.modules import ModuleCall
from gradscope.records.report import Report
from gradscope.rules._reading import Tree, complete, layers, rms
from gradscope.rules._rule import Findings, Limits, Rule, Runs, Threshold
from gradscope.rules._words import number, plural

RULE = Rule(
    code="GS102",
    name="exploding-gradient",
    severity="warning",
    summary="the gradient grows on its way to the first layers, through time, or between steps",
    what=(
        "Compares the norm of the gradient at each weighted layer's output with that at the last "
        "layer. It names the layer nearest the loss at which the growth is over the limit. With "
        "several steps, it also compares the norm of all gradients with the median of the earlier "
        "steps. A recurrent layer runs all time steps in one call. There it compares the gradient "
        "of the input weight with the largest that a single time step could give it: the norm of "
        "the input times the norm of the output gradient. A larger gradient has grown through "
        "time."
    ),
    why=(
        "One step with such gradients destroys the weights of the first layers. The loss becomes "
        "NaN a few steps later, far from the cause."
    ),
    fix=(
        "Check the initialisation of the named layer, normalise or scale residual "
        "branches, lower the learning rate, and clip: about the 90th percentile of the unclipped "
        "norms is a good bound."
    ),
    sources=(
        "Pascanu et al. 2013, On the difficulty of training recurrent neural networks",
        "Google deep-learning tuning playbook: clip at about the 90th percentile, log unclipped",
        "AUTOTRAINER: ratio > 70",
        "TheDeepChecker: mean absolute gradient > 1e6, or growth >= 2 in each of 5 windows",
        "SageMaker Debugger, ExplodingTensor: NaN or Inf only, which GS301 reports",
        "trainproof: more than 10 times the running median",
    ),
    calibration=(
        "Of 28 healthy models, fresh and trained, 0 of 28 fire, and 6 of 6 broken programs do. "
        "The nearest healthy ratio is 310 (ResNet-50 on two small pictures), the nearest broken"
        " one 1.7e+05; from 1e+03 to 1e+05 nothing changes. Through time fresh recurrent layers "
        "of up to 100 steps stay below 0.5; from 1 to 1e+03 nothing changes. With one sample "
        "4 of 6 are caught: a single sequence may hardly have a gradient."
    ),
    thresholds=(
        Threshold(
            "ratio",
            1e4,
            "a layer's gradient norm divided by the last layer's, above which it fires",
            presets={"autotrainer": 70, "sagemaker": None, "deepchecker": None},
        ),
        Threshold(
            "spike",
            10,
            "gradient norm of a step divided by the median of the steps before, above which it "
            "fires",
            source="trainproof",
            presets={"autotrainer": None, "sagemaker": None, "deepchecker": None},
        ),
        Threshold(
            "through_time",
            100,
            "gradient norm of a recurrent layer's input weight divided by the most that one time "
            "step could give it, above which it fires",
            presets={"autotrainer": None, "sagemaker": None, "deepchecker": None},
        ),
        Threshold(
            "mean_abs",
            None,
            "mean absolute gradient of a weight, above which it fires; it reads |mean|, which is "
            "never larger",
            presets={"deepchecker": 1e6},
        ),
        Threshold(
            "growth",
            None,
            "gradient norm of a step divided by that of the step before; it fires if five steps "
            "in a row are at or above this",
            presets={"deepchecker": 2},
        ),
    ),
    runs=Runs(per="model", calls=True),
)
#: The weights of a recurrent layer that multiply its input, in both directions.
_INPUT_WEIGHTS = ("weight_ih_l0", "weight_ih_l0_reverse")
_RECURRENT = (
    "Start from an orthogonal recurrent weight (`nn.init.orthogonal_(rnn.weight_hh_l0)`), clip the "
    "gradient's norm, or take an LSTM or a GRU."
)


def find(report: Report, limits: Limits) -> Findings:
    """Yield findings on growth over depth and time, on weights with a huge gradient, and on jumps
    and growth over steps."""
    yield from _over_depth(report, limits)
    yield from _through_time(report, limits)
    yield from _large(report, limits)
    yield from _spike(report, limits)
    yield from _growth(report, limits)


def _over_depth(report: Report, limits: Limits) -> Findings:
    limit = limits.get("ratio")
    found = [(layer, layer.gradient) for layer in layers(report) if layer.gradient]
    if limit is None or len(found) < 2:
        return
    last = found[-1][1]
    over = [(layer, norm) for layer, norm in found if norm > limit * last]
    if over:
        layer, norm = over[-1]
        worst = max(norm for _, norm in over)
        yield RULE.finding(
            layer.name,
            f"the gradient has grown to {number(norm)} here, from {number(last)} at "
            f"`{found[-1][0].name}`; it reaches {number(worst)} further on, over "
            f"{plural(len(over), 'layer')}.",
            call=layer.call.call,
            value=norm / last,
            limit=limits.of("ratio"),
        )


def _through_time(report: Report, limits: Limits) -> Findings:
    limit, tree = limits.get("through_time"), Tree(report)
    for facts in report.modules if limit is not None and complete(report) else ():
        calls = [call for call in report.calls if call.name == facts.name and call.inputs]
        bound = sum(_one_step(call) for call in calls) if "RNNBase" in facts.kinds else 0.0
        weights = (tree.known.get(f"{facts.name}.{name}".lstrip(".")) for name in _INPUT_WEIGHTS)
        norms = [(p.gradient.norm or 0.0, p.name) for p in weights if p and p.gradient]
        norm, weight = max(norms, default=(0.0, ""))
        if limit is None or not bound or norm <= limit * bound:
            continue
        yield RULE.finding(
            facts.name,
            f"the gradient grows through time: the gradient of `{weight}` has a norm of "
            f"{number(norm)}; a single time step could give at most {number(bound)}.",
            advice=_RECURRENT,
            call=calls[0].call,
            value=norm / bound,
            limit=limits.of("through_time"),
        )


def _one_step(call: ModuleCall) -> float:
    """Return an upper bound of the gradient from a single time step: ‖g xᵀ‖ ≤ ‖g‖·‖x‖ (Cauchy and
    Schwarz)."""
    norms = (output.gradient.norm or 0.0 for output in call.outputs if output.gradient)
    return math.hypot(*norms) * (call.inputs[0].activation.norm or 0.0)


def _large(report: Report, limits: Limits) -> Findings:
    limit = limits.get("mean_abs")
    for p in report.parameters if limit is not None else ():
        mean = abs(p.gradient.mean or 0) if p.gradient else 0
        size = rms(p.gradient)
        if limit is not None and mean > limit:
            yield RULE.finding(
                p.name,
                f"its gradient has a mean of {number(mean)} and a root mean square of "
                f"{number(size)}.",
                value=mean,
                limit=limits.of("mean_abs"),
            )


def _norms(report: Report) -> list[tuple[int, float]]:
    """Return the norm of each step's last backward: gradients accumulate within a step."""
    found = {record.step: record.gradient_norm for record in report.history}
    return [(step, norm) for step, norm in found.items() if norm]


def _spike(report: Report, limits: Limits) -> Findings:
    limit, norms = limits.get("spike"), _norms(report)
    for i, (step, norm) in enumerate(norms):
        usual = median(n for _, n in norms[:i]) if i else norm
        if limit is not None and norm > limit * usual:
            yield RULE.finding(
                "",
                f"in step {step} the gradient's norm is {number(norm)}, after a median of "
                f"{number(usual)} in the steps before.",
                value=norm / usual,
                limit=limits.of("spike"),
            )
            return


def _growth(report: Report, limits: Limits) -> Findings:
    limit, norms = limits.get("growth"), [norm for _, norm in _norms(report)]
    if limit is None or len(norms) < 6:
        return
    ratios = [b / a for a, b in zip(norms[-6:], norms[-5:], strict=False)]
    if all(ratio >= limit for ratio in ratios):
        yield RULE.finding(
            "",
            f"the gradient's norm rose from {number(norms[-6])} to {number(norms[-1])} in five "
            "steps.",
            value=min(ratios),
            limit=limits.of("growth"),
        )
