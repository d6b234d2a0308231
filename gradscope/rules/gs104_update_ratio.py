"""GS104: steps that are too large or too small for the weights that they change."""

from __future__ import annotations

from gradscope.records.modules import ParameterStats
from gradscope.records.report import Report
from gradscope.rules._reading import middle
from gradscope.rules._rule import Findings, Limits, Rule, Runs, Threshold
from gradscope.rules._words import listed, number, plural

RULE = Rule(
    code="GS104",
    name="update-ratio",
    severity="warning",
    summary="the optimizer's step is too large or too small for the weights",
    what=(
        "Reads ‖Δw‖/‖w‖ of the optimizer's real step for every weight of two or more axes. It "
        "fires if the median weight moves by more than the upper limit or by less than the lower "
        "one, and if a parameter with a gradient did not move. It does not judge single layers: "
        "the ratio varies by a factor of 100 inside one healthy model. If only one weight "
        "trains, it may move by its own norm."
    ),
    why=(
        "About a thousandth per step is healthy. A step as large as the weights destroys what "
        "they have learned. A step a million times smaller has no effect, and bfloat16 rounds it "
        "away."
    ),
    fix="Set the learning rate so that most weights move by about a thousandth of their norm.",
    sources=(
        "Karpathy, CS231n notes and makemore part 3: about 1e-3",
        "SageMaker Debugger, WeightUpdateRatio: large 10, small 1e-8",
        "TheDeepChecker: log10 outside -4 to -1",
        "TorchLens: a spread of 38 times inside one healthy model, so two decades at least",
    ),
    calibration=(
        "Of 28 healthy models, after a step of SGD or AdamW, 0 of 28 fire, and 4 of 4 broken "
        "programs do. `large` could lie anywhere from 0.09 to 0.9; `small` lies between 1e-07 "
        "(broken) and 4.9e-07 (a trained model whose loss is near zero)."
    ),
    thresholds=(
        Threshold(
            "large",
            0.3,
            "the median weight's ratio, above which it fires",
            presets={"sagemaker": 10, "deepchecker": 1e-1},
        ),
        Threshold(
            "small",
            2e-7,
            "the median weight's ratio, below which it fires",
            presets={"sagemaker": 1e-8, "deepchecker": 1e-4},
        ),
    ),
    # At the end of a schedule, and of training, steps are small and should be.
    runs=Runs(always=True, per="model", at_optimizer=True),
    explains=("GS603", "GS613", "GS604"),
)
#: A gradient this small relative to the largest is rounding, such as for a bias before a batch
#: norm.
_NOISE = 1e-6
#: Optimizers that choose the length of each step themselves.
_LINE_SEARCH = ("LBFGS",)


def find(report: Report, limits: Limits) -> Findings:
    """Yield at most one finding each for too large, too small and zero updates."""
    stepped = [p for p in report.parameters if p.update_ratio is not None and p.requires_grad]
    # Judged by elements, because a bias whose norm is 0 has no ratio.
    least = _NOISE * max(
        (p.gradient.norm or 0.0 for p in report.parameters if p.gradient), default=0
    )
    still = [p for p in report.parameters if p.requires_grad and _is_still(p)]
    still = [p for p in still if p.gradient is not None and (p.gradient.norm or 0.0) > least]
    # A token or a scale has axes of length 1; it may start near zero, so its ratio says little.
    weights = [p for p in stepped if sum(size > 1 for size in p.shape) > 1]
    ratios = [(p.name, p.update_ratio) for p in weights if p.update_ratio]
    if report.run.optimizer not in _LINE_SEARCH:
        yield from _large(ratios, limits)
    yield from _small(ratios, limits)
    if still:
        names = [p.name for p in still]
        yield RULE.finding(
            names[0],
            f"{plural(len(still), 'parameter')} with a gradient did not move in the step: "
            f"{listed(names)}.",
            advice=(
                "Look at the learning rate of this parameter group: it is 0, or so small that the "
                "weights' precision rounds the step away."
            ),
            value=0.0,
            threshold=0.0,
            source="a step that moves nothing",
        )


def _large(ratios: list[tuple[str, float]], limits: Limits) -> Findings:
    usual, limit = middle(ratio for _, ratio in ratios), limits["large"]
    if len(ratios) == 1:  # no median: a new head on frozen layers starts as small as it likes
        limit = max(limit, 1.0)
    if usual is not None and usual > limit:
        name, _ = max(ratios, key=lambda pair: pair[1])
        yield RULE.finding(
            name,
            f"one step changes the median weight by {number(usual)} times its norm; `{name}` "
            "changes most. About 0.001 is usual.",
            advice="Lower the learning rate, warm it up, or clip the gradient.",
            value=usual,
            limit=limits.of("large"),
        )


def _small(ratios: list[tuple[str, float]], limits: Limits) -> Findings:
    usual, limit = middle(ratio for _, ratio in ratios), limits["small"]
    if usual is not None and usual < limit:
        name, _ = min(ratios, key=lambda pair: pair[1])
        yield RULE.finding(
            name,
            f"one step changes the median weight by {number(usual)} times its norm; `{name}` "
            "changes least. About 0.001 is usual.",
            advice="Raise the learning rate, or find out why the gradients are this small.",
            value=usual,
            limit=limits.of("small"),
        )


def _is_still(parameter: ParameterStats) -> bool:
    if parameter.moved is False:  # without a rate, the script removed the gradient before the step
        return parameter.effective_lr is not None
    return parameter.moved is None and parameter.update_ratio == 0
