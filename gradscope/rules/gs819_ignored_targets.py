"""GS819: targets that are all ignored."""

from __future__ import annotations

from gradscope.records.loop import LoopRecord
from gradscope.rules._loop import LoopFindings, enough, in_steps, of_loss
from gradscope.rules._rule import Limits, Rule, Runs

RULE = Rule(
    code="GS819",
    name="ignored-targets",
    severity="error",
    summary="every target, or every answer, of the cross entropy is its `ignore_index`",
    what=(
        "Reads the targets of cross entropies in the sampled steps. It fires if all targets of "
        "all batches that were read are `ignore_index`. It also fires if, in each sequence of a "
        "language model, the targets count up to a position and those after it, of real tokens, "
        "do not: then the prompt is trained, and not the answer."
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
    """Yield one finding for the losses on each layer's scores, and for each language model."""
    for tokens in loop.tokens:
        if tokens.unanswered == tokens.batches and enough(loop, tokens.unanswered):
            read = in_steps(tokens.unanswered, tokens.batches, "batch", "batches")
            yield RULE.in_loop(
                loop,
                "",
                "in each sequence, the targets of the first tokens count, and those of all later "
                f"ones are ignored, {read} that were read: the prompt is trained, and the answer "
                "is not.",
                advice="Mask the prompt instead: `labels[:len(prompt)] = -100`.",
                value=float(tokens.unanswered),
                cause="answers",
                location=tokens.ignored_at or of_loss(loop, tokens),
            )
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
