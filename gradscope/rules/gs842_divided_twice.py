"""GS842: a loss that is divided twice."""

from __future__ import annotations

from gradscope.records.loop import LoopRecord
from gradscope.rules._loop import LoopFindings, enough, of_loss
from gradscope.rules._rule import CHOSEN, SILENT_ON_HONEST, Limits, Rule, Runs, Threshold

RULE = Rule(
    code="GS842",
    name="divided-twice",
    severity="warning",
    summary="the loss is divided twice by the same number, or a mean is divided by the batch size",
    what=(
        "Reads the divisions at the end of the loss in its graph. It fires if the loss is "
        "divided twice by the number of backwards in a step, or if the mean over a batch is "
        "divided by the batch size again, in every loss that was read. With optimizers like Adam "
        "the second is an info: they do not depend on the gradient's scale."
    ),
    why=("Gradients are too small by that factor. With SGD, this divides the learning rate by it."),
    fix=(
        "Divide once. `Accelerator.backward` and `Trainer` divide by the accumulation steps "
        "themselves, and the losses of PyTorch are means over the batch."
    ),
    sources=(
        "accelerate, gradient accumulation: the loss is divided by backward()",
        "PyTorch, torch.nn.CrossEntropyLoss: reduction",
    ),
    thresholds=(
        Threshold(
            "batch",
            8,
            "smallest batch that is judged",
            CHOSEN,
        ),
    ),
    calibration=SILENT_ON_HONEST,
    runs=Runs(loop=True),
    explains=("GS612",),
)


#: Optimizers whose step does not depend on the gradient's scale.
_SCALE_FREE = (
    "Adam",
    "RAdam",
    "NAdam",
    "RMSprop",
    "Lion",
    "Adagrad",
    "Adadelta",
    "Adafactor",
    "Muon",
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for each kind."""
    for one in loop.operations:
        if one.kind != "divided" or not enough(loop, one.count) or one.count < loop.graphs:
            continue
        number, steps = one.figures[0], loop.steps
        several = loop.backwards / steps if steps else 0.0
        if one.name == "twice":
            if abs(several - number) > 0.5:
                continue
            message = (
                f"the loss is divided twice by {number:g}, the number of backwards in a step: "
                f"once here, and once more on the way to backward, as `Accelerator.backward` "
                f"already does. Gradients are {number:g} times too small."
            )
        else:
            if number < limits["batch"] or several > 1.5 or one.first == one.figures == ():
                continue
            message = (
                f"the loss is a mean over the batch already, and is divided by the batch size "
                f"{number:g} again: gradients are {number:g} times too small."
            )
        free = all(two.kind.startswith(_SCALE_FREE) for two in loop.optimizers)
        yield RULE.in_loop(
            loop,
            "",
            message,
            severity="info" if free else None,
            value=number,
            cause=one.name,
            location=of_loss(loop, one),
        )
