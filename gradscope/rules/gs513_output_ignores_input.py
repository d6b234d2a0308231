"""GS513: an output that is the same for all samples, though these differ."""

from __future__ import annotations

from collections.abc import Iterator

from gradscope.records.loop import LoopRecord
from gradscope.records.training import TrainingFinding
from gradscope.rules._loop import at
from gradscope.rules._rule import CHOSEN, Limits, Rule, Runs, Threshold
from gradscope.rules._words import plural

RULE = Rule(
    code="GS513",
    name="output-ignores-input",
    severity="error",
    summary="a model gives the same output for all samples, to the last bit",
    what=(
        "Compares what a model returns for the samples of a batch in the sampled steps. It fires "
        "if the inputs differ but the outputs are the same to the last bit, in the last sampled "
        "steps and in half of all. A head of zeros gives equal outputs until its first step."
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
            "share", 0.5, "share of the batches that were read, at or above which it fires", CHOSEN
        ),
    ),
    runs=Runs(loop=True),
    explains=("GS603", "GS613"),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> Iterator[TrainingFinding]:
    """One finding for each model."""
    for one in loop.batches:
        if one.constant < max(limits["batches"], limits["share"] * one.outputs):
            continue
        name = next((model.name for model in loop.models if model.id == one.model), None)
        yield at(
            RULE.finding(
                name or "",
                "the output is the same for all samples of a batch, to the last bit, in the last "
                f"{plural(one.constant, 'batch', 'batches')} that were read, though the inputs "
                "differ: nothing of the input reaches it.",
                value=float(one.constant),
                limit=limits.of("batches"),
                location=one.location,
            ),
            loop,
            model=name,
        )
