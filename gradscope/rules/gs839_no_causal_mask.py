"""GS839: a model of the next token that sees it."""

from __future__ import annotations

from collections.abc import Iterator

from gradscope.records.loop import LoopRecord
from gradscope.records.training import TrainingFinding
from gradscope.rules._loop import at, of_loss
from gradscope.rules._rule import CHOSEN, Limits, Rule, Runs, Threshold

RULE = Rule(
    code="GS839",
    name="no-causal-mask",
    severity="error",
    summary="the target is the next token, and the model sees that token: it has no causal mask",
    what=(
        "Compares the targets of a classification with the tokens that the model was given, "
        "in the sampled steps. Where each target is the token after its position, it runs one "
        "call again with other tokens in the second half of each sequence, in eval mode, "
        "before the update. It fires where outputs of the first half change."
    ),
    why=(
        "The answer is in the input: the loss falls far below what can be known, and the "
        "model fails in generation, where later tokens do not exist yet."
    ),
    fix=(
        "Mask later positions: `is_causal=True` of `scaled_dot_product_attention`, or "
        "`mask=Transformer.generate_square_subsequent_mask(length)` of `torch.nn`. `gradscope "
        "run --leaks` names the layer."
    ),
    sources=(
        "Vaswani et al. 2017, Attention is all you need, 3.2.3: masking in the decoder",
        "PyTorch, torch.nn.Transformer: tgt_mask",
    ),
    thresholds=(Threshold("batches", 2, "batches that were read needed to judge", CHOSEN),),
    calibration=(
        "Silent on the honest programs of tests/rules and on 20 honest trainings that were "
        "written without sight of the rules."
    ),
    runs=Runs(loop=True),
    explains=("GS6",),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> Iterator[TrainingFinding]:
    """One finding for each model."""
    names = {model.id: model.name for model in loop.models}
    for one in loop.tokens:
        if one.batches < limits["batches"] or one.following < one.batches:
            continue
        if one.copied == one.batches or not one.future:
            continue
        name = names.get(one.model, "")
        yield at(
            RULE.finding(
                name,
                "the target at each position is the next input token, and the output there depends "
                "on later tokens: attention has no causal mask, and the model sees what it is to "
                "predict.",
                value=float(one.following),
                limit=limits.of("batches"),
                location=one.mixed_at or of_loss(loop, one),
            ),
            loop,
            model=name,
        )
