"""GS610: a gradient that vanishes over depth while the loss does not fall."""

from __future__ import annotations

from gradscope.records.loop import LoopRecord
from gradscope.records.loop_figures import LayerGradient, LoopDepth, LoopFact
from gradscope.rules._course import stopped_early
from gradscope.rules._loop import LoopFindings, at
from gradscope.rules._rule import Limits, Rule, Runs, Threshold
from gradscope.rules._words import number, plural

RULE = Rule(
    code="GS610",
    name="slow-first-layers",
    severity="warning",
    summary="the first layers barely move over the run, and the loss does not fall",
    what=(
        "Divides each layer's gradient by its weight over all samples of the run, and compares "
        "this layer and all upstream of it with the largest downstream. With optimizers that "
        "divide by the gradient's size, such as Adam, it takes the update instead of the "
        "gradient. It fires if the ratio is tiny, and the mean loss of the run's last quarter is "
        "no lower than that of the quarter before, against their noise. It names the layer "
        "nearest the loss for which this holds. It does not judge runs with several optimizers, "
        "nor losses that are not positive or mostly noise."
    ),
    why=(
        "The first layers keep their random weights, and the last ones alone cannot lower the "
        "loss. GS101 needs a ratio of 1e-6 in one step; over a run, a larger ratio is evidence "
        "enough."
    ),
    fix=(
        "Use activations that do not flatten out (ReLU, GELU), an initialisation that fits them "
        "(Kaiming, Xavier), normalisation or residual connections around the named layer."
    ),
    sources=(
        "Glorot and Bengio 2010, Understanding the difficulty of training deep feedforward "
        "neural networks",
        "Nielsen 2015, Neural networks and deep learning, chapter 5: early layers learn slowly",
        "AUTOTRAINER: first over last < 1e-3 and first < 1e-4",
    ),
    calibration=(
        "Of 44 healthy trainings of 320 to 640 steps (22 networks, two seeds) 0 of 44 fire, and 2 "
        "of 2 broken ones are found. The smallest ratio of a healthy one is 0.24; five layers of "
        "sigmoids have 0.0002. `ratio` could lie anywhere from 0.001 to 0.006 and beyond; of 28 "
        "healthy models in one step of SGD the smallest that does not jump is 0.009 (SqueezeNet)."
    ),
    thresholds=(
        Threshold("ratio", 2e-3, "the ratio over all samples, below which it fires"),
        Threshold(
            "jump",
            100,
            (
                "the next layer's ratio divided by this one, above which it is a jump and not a "
                "vanishing gradient"
            ),
        ),
        Threshold("samples", 8, "samples needed to judge"),
        Threshold(
            "errors", 2, ("fall of the loss in standard errors, above which the loss is falling")
        ),
        Threshold("left", 0.5, "the loss divided by that of the first steps, above which it fires"),
        Threshold(
            "noise", 0.5, "standard deviation divided by mean, above which it does not judge"
        ),
    ),
    runs=Runs(loop=True),
    explains=("GS101", "GS603", "GS613", "GS605"),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for each model."""
    course = loop.course
    if course is None or len(loop.optimizers) != 1 or not stopped_early(course, limits):
        return
    for depth in loop.depths:
        if depth.samples < limits["samples"]:
            continue
        frontier = _frontier(depth, limits)
        if frontier is None:
            continue
        layers = 1 + depth.layers.index(frontier)
        model = next((one.name for one in loop.models if one.id == depth.model), None)
        start = _start(loop, depth, model)
        finding = RULE.finding(
            frontier.name,
            f"over {depth.samples} samples, gradients divided by weights are "
            f"{number(1 / frontier.ratio)} times smaller here{_and(layers)} than nearer the loss, "
            f"as in `{depth.last}`. The loss is at {number(course.last)}, and began at "
            f"{number(course.first)}.{_started(start)}",
            advice=None
            if start is None
            else "Initialise the weights for the activation: `nn.init.kaiming_normal_` for ReLU, "
            "`nn.init.xavier_uniform_` for tanh.",
            location=None if start is None else start.location,
            value=frontier.ratio,
            limit=limits.of("ratio"),
        )
        yield at(finding, loop, model=model)


def _start(loop: LoopRecord, depth: LoopDepth, model: str | None) -> LoopFact | None:
    """Return the line that made the weights of most layers much too small."""
    names = {layer.name for layer in depth.layers} | {depth.last}
    for one in loop.facts_of("small-start"):
        if one.model == model and 2 * len(names.intersection(one.words)) > len(names):
            return one
    return None


def _started(start: LoopFact | None) -> str:
    if start is None:
        return ""
    deviation, usual = map(number, start.figures)
    return f" The weights start with a deviation of {deviation}; Kaiming's would be {usual}."


def _and(layers: int) -> str:
    return f", and in {plural(layers - 1, 'layer')} before," if layers > 1 else ""


def _frontier(depth: LoopDepth, limits: Limits) -> LayerGradient | None:
    """Return the layer nearest the loss that is below the limit, if the gradient shrinks layer by
    layer.

    If the next layer has many times more, this one is a branch that matters little, such as queries
    and keys of an attention that is still even.
    """
    # GS103 reports a ratio of 0.
    below = [n for n, layer in enumerate(depth.layers) if 0 < layer.ratio < limits["ratio"]]
    if not below:
        return None
    last = below[-1]
    after = depth.layers[last + 1].ratio if last + 1 < len(depth.layers) else 1.0
    found = depth.layers[last]
    return found if after < limits["jump"] * found.ratio else None
