"""GS513: an output that is the same for all samples, though these differ."""

from __future__ import annotations

from dataclasses import dataclass

from gradscope.records.loop import LoopRecord
from gradscope.records.loop_figures import LoopBatches
from gradscope.rules._loop import LoopFindings
from gradscope.rules._rule import CHOSEN, Limits, Rule, Runs, Threshold
from gradscope.rules._words import number, plural

RULE = Rule(
    code="GS513",
    name="output-ignores-input",
    severity="error",
    summary="a model gives the same output for all samples, to the last bit",
    what=(
        "Compares what a model returns for the samples of a batch in the sampled steps. It fires "
        "if the inputs differ but the outputs are the same to the last bit, in the last sampled "
        "steps and in half of all. A head of zeros gives equal outputs until its first step. It "
        "names large inputs or large steps as the reason, if there are any."
    ),
    why=(
        "Nothing of the input reaches the output: all units of a layer are dead, a mask is zero, "
        "or a constant replaces the features. Only the bias still learns."
    ),
    fix=(
        "Look for the first layer whose output is the same for all samples: `gradscope show RUN "
        "--step N` has a row for each."
    ),
    sources=(
        "PyTorch forum: my model predicts the same for every input",
        "Slavv 2017, 37 reasons why your neural network is not working",
    ),
    thresholds=(
        Threshold("batches", 5, "equal outputs in a row needed to judge", CHOSEN),
        Threshold(
            "ratio",
            0.1,
            "step over norm of the median weight, above which it is the reason",
            CHOSEN,
        ),
        Threshold("size", 30, "root mean square of inputs, above which it is the reason", CHOSEN),
        Threshold(
            "share", 0.5, "share of the batches that were read, at or above which it fires", CHOSEN
        ),
    ),
    runs=Runs(loop=True),
    explains=("GS104", "GS203", "GS603", "GS604", "GS613"),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for each model."""
    for one in loop.batches:
        if one.constant < max(limits["batches"], limits["share"] * one.outputs):
            continue
        name = next((model.name for model in loop.models if model.id == one.model), None)
        reason = _reason(loop, one, limits)
        yield RULE.in_loop(
            loop,
            name or "",
            "the output is the same for all samples of a batch, to the last bit, in the last "
            f"{plural(one.constant, 'batch', 'batches')} that were read, though the inputs "
            f"differ: nothing of the input reaches it.{reason.words}",
            advice=reason.advice,
            value=float(one.constant),
            limit=limits.of("batches"),
            location=reason.location or one.location,
            model=name,
        )


@dataclass(frozen=True, slots=True)
class _Reason:
    """The likeliest reason, as the end of the message."""

    words: str = ""
    advice: str | None = None
    location: str | None = None


def _reason(loop: LoopRecord, batches: LoopBatches, limits: Limits) -> _Reason:
    if batches.size > limits["size"]:
        return _Reason(
            f" The inputs are not normalized: their root mean square is {number(batches.size)}.",
            "Normalize the inputs: subtract their mean, and divide by their standard deviation.",
        )
    for one in loop.weights:
        if one.model == batches.model and one.ratio > limits["ratio"]:
            made = (
                each.rate_at or each.location
                for each in loop.optimizers
                if each.name == one.optimizer
            )
            return _Reason(
                f" The steps are too large: each moves the median weight by {number(one.ratio)} "
                f"times its norm, at a learning rate of {one.rate:g}.",
                "Lower the learning rate: about 0.001 of the norm in each step is usual.",
                next(made, None),
            )
    return _Reason()
