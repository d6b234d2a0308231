"""GS101: gradients that shrink towards the first layers."""

from __future__ import annotations

from gradscope.records.report import Report
from gradscope.rules._reading import layers, rms
from gradscope.rules._rule import Findings, Limits, Rule, Runs, Threshold
from gradscope.rules._words import number, others, plural

RULE = Rule(
    code="GS101",
    name="vanishing-gradient",
    severity="warning",
    summary="the gradient shrinks from the loss to the first layers",
    what=(
        "Compares the norm of the gradient at each weighted layer's output with the largest one "
        "nearer the loss. If the gradient is too small at a layer and at all layers upstream, it "
        "names the one nearest the loss: the cause is there, and the layers upstream inherit it."
    ),
    why=(
        "Layers upstream of this one get far smaller updates than those downstream. They keep "
        "their random weights while the rest of the network trains."
    ),
    fix=(
        "Use activations that do not flatten out (ReLU, GELU), an initialisation that fits them "
        "(Kaiming, Xavier), normalisation or residual connections around the named layer."
    ),
    sources=(
        "Glorot and Bengio 2010, Understanding the difficulty of training deep feedforward "
        "neural networks",
        "SageMaker Debugger, VanishingGradient: mean absolute gradient < 1e-7",
        "TheDeepChecker: mean absolute gradient < 1e-6, or decay <= 0.5 in each of 5 windows",
        "AUTOTRAINER: first over last < 1e-3 and first < 1e-4",
    ),
    calibration=(
        "Of 28 healthy models, fresh and trained, 0 of 28 fire, and 4 of 4 broken programs do. "
        "The nearest healthy value is 1.9e-05 (a small BERT), the nearest broken one 1.7e-07; "
        "from 3e-07 to 1e-05 nothing changes."
    ),
    thresholds=(
        Threshold(
            "ratio",
            1e-6,
            "largest gradient norm upstream divided by the largest downstream, below which it "
            "fires",
            presets={"autotrainer": 1e-3, "sagemaker": None, "deepchecker": None},
        ),
        Threshold(
            "norm",
            None,
            "the gradient norm upstream must also be below this",
            presets={"autotrainer": 1e-4},
        ),
        Threshold(
            "mean_abs",
            None,
            "mean absolute gradient of a weight, below which it fires; it reads the root mean "
            "square, which is never smaller",
            presets={"sagemaker": 1e-7, "deepchecker": 1e-6},
        ),
        Threshold(
            "decay",
            None,
            "gradient norm of a step divided by that of the step before; it fires if five steps "
            "in a row are at or below this",
            presets={"deepchecker": 0.5},
        ),
    ),
    runs=Runs(per="model", calls=True),
    explains=("GS603", "GS606", "GS613"),
)


def find(report: Report, limits: Limits) -> Findings:
    """Yield findings on the frontier over depth, on weights with a tiny gradient, and on decay over
    steps."""
    yield from _over_depth(report, limits)
    yield from _small(report, limits)
    yield from _over_steps(report, limits)


def _over_depth(report: Report, limits: Limits) -> Findings:
    limit, ceiling = limits.get("ratio"), limits.get("norm")
    found = [(layer, layer.gradient) for layer in layers(report) if layer.gradient]
    if limit is None or len(found) < 2:
        return
    downstream = [0.0]  # the largest gradient nearer the loss, for each layer
    for _, norm in reversed(found[1:]):
        downstream.append(max(downstream[-1], norm))
    downstream.reverse()
    before, frontier = 0.0, None
    for i, (_, norm) in enumerate(found[:-1]):
        before = max(before, norm)
        if before < limit * downstream[i] and (ceiling is None or before < ceiling):
            frontier = (i, before / downstream[i], before, downstream[i])
    if frontier is None:
        return
    i, ratio, front, rear = frontier
    layer = found[i][0]
    yield RULE.finding(
        layer.name,
        f"from here to the input ({plural(i + 1, 'layer')}), gradient norms are at most "
        f"{number(front)}; nearer the loss they reach {number(rear)}.",
        call=layer.call.call,
        value=ratio,
        limit=limits.of("ratio"),
    )


def _small(report: Report, limits: Limits) -> Findings:
    limit = limits.get("mean_abs")
    if limit is None:
        return
    small = [
        (p.name, size)
        for p in report.parameters
        if p.requires_grad and len(p.shape) > 1 and (size := rms(p.gradient)) and size < limit
    ]
    if small:
        name, size = min(small, key=lambda pair: pair[1])
        yield RULE.finding(
            name,
            f"its mean absolute gradient is at most {number(size)}"
            f"{others(len(small) - 1, 'weight')}.",
            value=size,
            limit=limits.of("mean_abs"),
        )


def _over_steps(report: Report, limits: Limits) -> Findings:
    limit = limits.get("decay")
    norms = [record.gradient_norm for record in report.history if record.gradient_norm]
    if limit is None or len(norms) < 6:
        return
    ratios = [b / a for a, b in zip(norms[-6:], norms[-5:], strict=False)]
    if all(ratio <= limit for ratio in ratios):
        yield RULE.finding(
            "",
            f"the gradient's norm fell from {number(norms[-6])} to {number(norms[-1])} in five "
            "steps.",
            value=max(ratios),
            limit=limits.of("decay"),
        )
