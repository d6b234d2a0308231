"""GS819: targets that are all ignored."""

from __future__ import annotations

from collections.abc import Iterator

from gradscope.records.loop import LoopRecord
from gradscope.records.training import TrainingFinding
from gradscope.rules._loop import at, enough, in_steps, of_loss
from gradscope.rules._rule import Limits, Rule, Runs

RULE = Rule(
    code="GS819",
    name="ignored-targets",
    severity="error",
    summary="every target of the cross entropy is the index that it ignores",
    what=(
        "Reads the targets of cross entropies in the sampled steps, as the loss has kept them. It "
        "fires where all targets of all batches that were read are `ignore_index`."
    ),
    why=(
        "Nothing is learned: the loss is the mean over no target, which is NaN, or the sum over "
        "none, which is 0. Most often the labels of a prompt were masked, and of the answer too, "
        "or the answer was cut off."
    ),
    fix=(
        "Look at the labels of one batch: `(labels != -100).sum()`. Mask the prompt and the "
        "padding alone, and leave out samples of whose answer nothing is left."
    ),
    sources=(
        "PyTorch, nn.CrossEntropyLoss: ignore_index does not contribute to the input gradient",
        "huggingface/trl#6668: a loss of 0.0 when every label in the batch is masked",
        "nvidia-cosmos/cosmos-rl#155: all-masked labels make the loss NaN",
    ),
    runs=Runs(loop=True),
    explains=("GS103", "GS301", "GS821"),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> Iterator[TrainingFinding]:
    """One finding for the losses on each layer's scores."""
    for number, one in enumerate(loop.targets):
        if one.empty < one.batches or not enough(loop, one.empty):
            continue
        often = in_steps(one.empty, one.batches, "batch", "batches")
        yield at(
            RULE.finding(
                "",
                f"all {one.targets:,} targets that were read are ignore_index {one.ignore_index}, "
                f"{often}: the labels that the script gives have no target left.",
                value=float(one.targets),
                cause=str(number) if number else None,
                location=of_loss(loop, one),
            ),
            loop,
        )
