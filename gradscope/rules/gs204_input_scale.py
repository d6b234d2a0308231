"""GS204: inputs that are far from unit size."""

from __future__ import annotations

from gradscope.records.report import Report
from gradscope.rules._reading import layers, rms
from gradscope.rules._rule import CHOSEN, Findings, Limits, Rule, Runs, Threshold
from gradscope.rules._words import number

RULE = Rule(
    code="GS204",
    name="input-scale",
    severity="info",
    summary="the first layer's inputs are far from unit scale: they are not normalized",
    what=(
        "Reads the root mean square of the input of the first layer with a weight. It fires if "
        "that is far above 1, or far below while no input is near 1, or if the inputs' standard "
        "deviation is a small share of their mean. Inputs that a norm scales first do not "
        "count, and embeddings do not either, nor inputs that are all equal."
    ),
    why=(
        "Initialisation and the usual learning rates assume inputs of mean 0 and variance 1. "
        "With pixels up to 255, or columns in thousands, the largest feature dominates: "
        "activations saturate, and the first layer's gradients are too large by the same factor. "
        "Pixels that are divided by 255 twice are so small that the biases decide alone, and "
        "those that are normalized with the statistics of another scale are nearly constant."
    ),
    fix=(
        "Normalize the inputs: subtract the mean and divide by the standard deviation of each "
        "feature, taken over the training data."
    ),
    sources=(
        "LeCun et al. 1998, Efficient BackProp, 4.3: normalizing the inputs",
        "CS231n notes, data preprocessing",
        "Slavv 2017, 37 reasons why your neural network is not working: standardize the features",
    ),
    thresholds=(
        Threshold("size", 30, "root mean square of the input, above which it fires", CHOSEN),
        Threshold("small", 0.01, "root mean square of the input, below which it fires", CHOSEN),
        Threshold("spread", 0.01, "standard deviation per mean, below which it fires", CHOSEN),
    ),
    runs=Runs(per="model", parameters="all", calls=True, at_model_call=True),
    explains=("GS201", "GS612", "GS613"),
)

#: An input of this size is not far below 1.
_NEAR_ONE = 0.1
#: Fewer numbers may be close together by chance.
_FEWEST = 64


def find(report: Report, limits: Limits) -> Findings:
    """Yield at most one finding, on the first layer."""
    found = next(iter(layers(report)), None)
    if found is None or not found.call.inputs:
        return
    given = found.call.inputs[0].activation
    size = rms(given)
    if not given.dtype.startswith(("float", "bfloat")) or not size:
        return
    spread, mean = given.std or 0.0, abs(given.mean or 0.0)
    if given.numel >= _FEWEST and 0 < spread < limits["spread"] * mean:
        yield RULE.finding(
            found.name,
            f"the first layer gets inputs that are nearly constant: their mean is "
            f"{number(given.mean)}, their standard deviation {number(spread)}. They are not "
            f"normalized, or with the statistics of another scale.",
            call=found.call.call,
            value=spread / mean,
            limit=limits.of("spread"),
        )
        return
    # One-hot inputs are small on average only.
    largest = max(abs(given.min or 0.0), abs(given.max or 0.0))
    if size <= limits["size"] and (size >= limits["small"] or largest >= _NEAR_ONE):
        return
    limit = limits.of("size" if size > limits["size"] else "small")
    yield RULE.finding(
        found.name,
        f"the first layer gets inputs with a root mean square of {number(size)}, between "
        f"{number(given.min)} and {number(given.max)}: they are not normalized.",
        call=found.call.call,
        value=size,
        limit=limit,
    )
