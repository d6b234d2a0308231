"""GS840: a loss that is mostly padding."""

from __future__ import annotations

from gradscope.records.loop import LoopRecord
from gradscope.rules._loop import LoopFindings, of_loss
from gradscope.rules._rule import CHOSEN, SILENT_ON_HONEST, Limits, Rule, Runs, Threshold
from gradscope.rules._words import percent, plural

RULE = Rule(
    code="GS840",
    name="padding-in-loss",
    severity="warning",
    summary="most targets of a loss are padding, and `ignore_index` does not exclude them",
    what=(
        "Reads the targets of a classification and the model's input tokens, in the sampled "
        "steps. Padding is a token that fills the ends of sequences of different lengths and "
        "occurs nowhere else. It fires if all targets there are one class that occurs nowhere "
        "else, none is ignored, and they are most of the targets."
    ),
    why=(
        "The mean includes the padding: loss and accuracy look good as soon as the model "
        "predicts padding, and real targets give a small part of the gradient."
    ),
    fix=(
        "Leave the padding out: `nn.CrossEntropyLoss(ignore_index=pad)`, or pad the targets "
        "with -100."
    ),
    sources=(
        "PyTorch, torch.nn.CrossEntropyLoss: ignore_index",
        "PyTorch forum: LSTM tagger predicts only the padding tag",
    ),
    thresholds=(
        Threshold("share", 0.5, "share of the targets, above which it fires", CHOSEN),
        Threshold("batches", 2, "batches that were read needed to judge", CHOSEN),
    ),
    calibration=SILENT_ON_HONEST,
    runs=Runs(loop=True),
    explains=("GS613",),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for each model."""
    names = {model.id: model.name for model in loop.models}
    for one in loop.tokens:
        share = one.padding / one.targets if one.targets else 0.0
        if one.batches < limits["batches"] or share <= limits["share"] or one.lengths < 2:
            continue
        name = names.get(one.model, "")
        yield RULE.in_loop(
            loop,
            name,
            f"{percent(share)} of the targets are padding (class {one.pad_class}, at token "
            f"{one.pad}), and count in the loss, in "
            f"{plural(one.batches, 'batch', 'batches')} that were read.",
            advice=f"Leave the padding out of the loss: `ignore_index={one.pad_class}`, or pad "
            "the targets with -100.",
            value=share,
            limit=limits.of("share"),
            location=of_loss(loop, one),
            model=name,
        )
