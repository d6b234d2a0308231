"""GS839: a model that predicts the next token, but sees it."""

from __future__ import annotations

from gradscope.records.loop import LoopRecord
from gradscope.rules._loop import LoopFindings, of_loss, operations
from gradscope.rules._rule import CHOSEN, SILENT_ON_HONEST, Limits, Rule, Runs, Threshold

RULE = Rule(
    code="GS839",
    name="no-causal-mask",
    severity="error",
    summary="the model sees the next token, which is its target: a causal mask is missing",
    what=(
        "Compares the targets of a classification with the model's input tokens, in the sampled "
        "steps. If each target is the next token, it replays one call with other tokens in the "
        "second half of each sequence, in eval mode, before the update. It fires if outputs of "
        "the first half change."
    ),
    why=(
        "The input contains the answer: the loss falls too far, and the model fails in "
        "generation, where later tokens do not exist yet."
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
    calibration=SILENT_ON_HONEST,
    runs=Runs(loop=True),
    explains=("GS6",),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for each model."""
    names = {model.id: model.name for model in loop.models}
    if any(operations(loop, "softmax-axis", 0.0)):
        return  # a softmax over the positions mixes them: GS825 reports it
    for one in loop.tokens:
        if one.batches < limits["batches"] or one.following < one.batches:
            continue
        if one.copied == one.batches or not one.future:
            continue
        name = names.get(one.model, "")
        attention = "" if one.mixed_at is None else "attention has no causal mask, and "
        yield RULE.in_loop(
            loop,
            name,
            "the target at each position is the next input token, and the output there "
            f"depends on later tokens: {attention}the model sees the token that it should "
            "predict.",
            value=float(one.following),
            limit=limits.of("batches"),
            location=one.mixed_at or of_loss(loop, one),
            model=name,
        )
