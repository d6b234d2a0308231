"""GS841: an end token that is masked as padding."""

from __future__ import annotations

from gradscope.records.loop import LoopRecord
from gradscope.rules._loop import LoopFindings, of_loss
from gradscope.rules._rule import CHOSEN, SILENT_ON_HONEST, Limits, Rule, Runs, Threshold
from gradscope.rules._words import plural

RULE = Rule(
    code="GS841",
    name="ignored-end-token",
    severity="warning",
    summary="the end token is also the padding, so it is never a target",
    what=(
        "Reads the targets of a classification, and the tokens and attention mask of the model's "
        "input, in the sampled steps. It fires if all padded sequences end in one token, the "
        "padding is the same token, and the target at the end is ignored while earlier ones "
        "count."
    ),
    why=("The model never learns to end a sequence: generation runs to the maximum length."),
    fix=(
        "Mask the labels by the attention mask, not by the token: `labels[attention_mask == "
        "0] = -100`. Or add a separate padding token."
    ),
    sources=(
        "transformers, DataCollatorForLanguageModeling: labels of pad_token_id are -100",
        "huggingface/transformers: generation does not stop when pad_token = eos_token",
    ),
    thresholds=(Threshold("batches", 2, "batches that were read needed to judge", CHOSEN),),
    calibration=SILENT_ON_HONEST,
    runs=Runs(loop=True),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for each model."""
    names = {model.id: model.name for model in loop.models}
    for one in loop.tokens:
        if one.unended < limits["batches"]:
            continue
        name = names.get(one.model, "")
        yield RULE.in_loop(
            loop,
            name,
            f"token {one.end} ends every sequence and is the padding too, and its target is "
            f"ignored in {plural(one.unended, 'batch', 'batches')} that were read: the end "
            "token (EOS) is masked as padding, and the model never learns to stop.",
            value=float(one.unended),
            limit=limits.of("batches"),
            location=of_loss(loop, one),
            model=name,
        )
