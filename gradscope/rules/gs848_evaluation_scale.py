"""GS848: evaluation inputs of another scale."""

from __future__ import annotations

from gradscope.records.loop import LoopRecord
from gradscope.rules._loop import LoopFindings
from gradscope.rules._rule import CHOSEN, SILENT_ON_HONEST, Limits, Rule, Runs, Threshold
from gradscope.rules._words import number

RULE = Rule(
    code="GS848",
    name="evaluation-scale",
    severity="warning",
    summary="a model is evaluated on inputs of another scale than in training",
    what=(
        "Compares mean and standard deviation of the model's first floating-point input between "
        "the sampled training steps and calls without gradients. It reads the first of these "
        "calls, and later fewer and fewer of them. It fires if all evaluations that were read are "
        "far from the training."
    ),
    why=(
        "The model was not trained on such inputs, so the evaluation says nothing about it. Most "
        "often one of the two is not normalized."
    ),
    fix=("Use the same transform for both: the mean and deviation of the training data."),
    sources=(
        "CS231n notes, data preprocessing: the mean is that of the training data",
        "StackOverflow: high training accuracy, test accuracy at chance",
    ),
    thresholds=(
        Threshold(
            "shift",
            10,
            "difference of the means in standard deviations of the training, above which it fires",
            CHOSEN,
        ),
        Threshold("ratio", 50, "quotient of the deviations, above which it fires", CHOSEN),
    ),
    calibration=SILENT_ON_HONEST,
    runs=Runs(loop=True),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for each model."""
    names = {model.id: model.name for model in loop.models}
    for one in loop.inputs:
        far = one.least_shift > limits["shift"]
        if not far and one.least_ratio <= limits["ratio"]:
            continue
        name = names.get(one.model, "")
        mean, deviation = one.example
        yield RULE.in_loop(
            loop,
            name,
            f"`{name}` is evaluated on another scale than it is trained on: inputs have mean "
            f"{number(mean)} and standard deviation {number(deviation)}, in training "
            f"{number(one.mean)} and {number(one.deviation)}. Normalize both alike.",
            value=one.least_shift if far else one.least_ratio,
            limit=limits.of("shift" if far else "ratio"),
            location=one.location,
            model=name,
        )
