"""GS819: targets that are all ignored."""

from __future__ import annotations

from gradscope.records.loop import LoopRecord
from gradscope.rules._loop import LoopFindings, enough, in_steps, of_loss
from gradscope.rules._rule import Limits, Rule, Runs

RULE = Rule(
    code="GS819",
    name="ignored-targets",
    severity="error",
    summary="every target of the cross entropy is its `ignore_index`",
    what=(
        "Reads the targets of cross entropies in the sampled steps. It fires if all targets of "
        "all batches that were read are `ignore_index`."
    ),
    why=(
        "The model learns nothing: the mean over no target is NaN, the sum is 0. Most often the "
        "answer's labels were masked along with the prompt's, or the answer was cut off."
    ),
    fix=(
        "Look at the labels of one batch: `(labels != -100).sum()`. Mask only the prompt and the "
        "padding, and drop samples whose answer was cut off."
    ),
    sources=(
        "PyTorch, nn.CrossEntropyLoss: ignore_index does not contribute to the input gradient",
        "huggingface/trl#6668: a loss of 0.0 when every label in the batch is masked",
        "nvidia-cosmos/cosmos-rl#155: all-masked labels make the loss NaN",
    ),
    runs=Runs(loop=True),
    explains=("GS103", "GS301", "GS821"),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for the losses on each layer's scores."""
    for number, one in enumerate(loop.targets):
        if one.empty < one.batches or not enough(loop, one.empty):
            continue
        often = in_steps(one.empty, one.batches, "batch", "batches")
        yield RULE.in_loop(
            loop,
            "",
            f"all {one.targets:,} targets that were read are ignore_index {one.ignore_index}, "
            f"{often}: no target is left for the loss.",
            value=float(one.targets),
            cause=str(number) if number else None,
            location=one.made_at or of_loss(loop, one),
        )
