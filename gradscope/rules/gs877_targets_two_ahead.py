"""GS877: targets that are two positions ahead of the input tokens."""

from __future__ import annotations

from gradscope.records.loop import LoopRecord
from gradscope.rules._loop import LoopFindings, of_loss
from gradscope.rules._rule import CHOSEN, Limits, Rule, Runs, Threshold
from gradscope.rules._words import plural

RULE = Rule(
    code="GS877",
    name="targets-two-ahead",
    severity="error",
    summary="each target is the token after the next: the targets are shifted twice",
    what=(
        "Compares the targets of a classification with the model's input tokens, in the sampled "
        "steps. It fires if each target that is not ignored is the token two positions later, in "
        "every loss of the model. A model that predicts the next token, too, has another loss "
        "for it, and does not count."
    ),
    why=(
        "The model learns to predict the token after the next. Generation then leaves out every "
        "other token."
    ),
    fix=(
        "Shift once. Models of the transformers library shift `labels` themselves: give them "
        "`labels=input_ids`. In a loop of your own, use either `tokens[:, 1:]` as targets, or "
        "`scores[:, :-1]` with `targets[:, 1:]`."
    ),
    sources=("Hugging Face, causal language modeling: the model shifts the labels",),
    thresholds=(Threshold("batches", 2, "batches that were read needed to judge", CHOSEN),),
    calibration="Silent on the honest programs of tests/rules.",
    runs=Runs(loop=True),
    explains=("GS6", "GS820"),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for each model."""
    names = {model.id: model.name for model in loop.models}
    for one in loop.tokens:
        if one.batches < limits["batches"] or one.skipping < one.batches:
            continue
        name = names.get(one.model, "")
        reason = (
            "`labels` are shifted already, and the model shifts them again"
            if one.inside
            else "the targets are shifted twice"
        )
        yield RULE.in_loop(
            loop,
            name,
            "each target is the token two positions after the input token, in "
            f"{plural(one.batches, 'batch', 'batches')} that were read: {reason}. The model "
            "learns to predict the token after the next.",
            value=float(one.skipping),
            limit=limits.of("batches"),
            location=one.made_at or one.called_at or of_loss(loop, one),
            model=name,
        )
