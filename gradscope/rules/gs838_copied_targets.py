"""GS838: targets that are the input tokens."""

from __future__ import annotations

from gradscope.records.loop import LoopRecord
from gradscope.rules._loop import LoopFindings, of_loss
from gradscope.rules._rule import CHOSEN, SILENT_ON_HONEST, Limits, Rule, Runs, Threshold
from gradscope.rules._words import plural

RULE = Rule(
    code="GS838",
    name="copied-targets",
    severity="error",
    summary="each target is the input token at the same position: the shift by one is missing",
    what=(
        "Compares the targets of a classification with the model's input tokens, in the sampled "
        "steps. If each target that is not ignored equals the token at its position, it replays "
        "one call with other tokens, in eval mode, before the update. It fires if outputs depend "
        "on the token at their position, on earlier tokens and on no later one: such a model "
        "predicts the next token, which should be the target. A model that sees all tokens, such "
        "as an autoencoder or a masked language model, does not count, nor does a decoder that "
        "shifts the tokens itself."
    ),
    why=(
        "The model learns to copy its input: the loss falls to 0, and generation repeats the "
        "last token."
    ),
    fix=(
        "Shift the targets by one: `inputs, targets = tokens[:, :-1], tokens[:, 1:]`. Models of "
        "the transformers library shift `labels` themselves."
    ),
    sources=(
        "karpathy/nanoGPT, get_batch: y is x one position later",
        "PyTorch, NLP from scratch: sequence to sequence: the decoder is fed the target before",
    ),
    thresholds=(Threshold("batches", 2, "batches that were read needed to judge", CHOSEN),),
    calibration=SILENT_ON_HONEST,
    runs=Runs(loop=True),
    explains=("GS6", "GS820"),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for each model."""
    names = {model.id: model.name for model in loop.models}
    for one in loop.tokens:
        if one.batches < limits["batches"] or one.copied < one.batches:
            continue
        if one.following == one.batches or one.future is not False or not one.past:
            continue
        if not one.own:  # the model shifts the tokens itself, as a decoder with teacher forcing
            continue
        name = names.get(one.model, "")
        yield RULE.in_loop(
            loop,
            name,
            "each target is the same token as the input at its position, in "
            f"{plural(one.batches, 'batch', 'batches')} that were read: the targets are not "
            "shifted by one, and the model learns to copy its input.",
            value=float(one.batches),
            limit=limits.of("batches"),
            location=one.made_at or one.called_at or of_loss(loop, one),
            model=name,
        )
