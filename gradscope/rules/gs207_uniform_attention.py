"""GS207: attention whose scores never learn."""

from __future__ import annotations

import math

from gradscope.records.transformer import AttentionCall
from gradscope.rules._history import SampleHistory
from gradscope.rules._rule import OWN, Findings, Limits, Rule, Runs, Threshold
from gradscope.rules._words import number, percent

RULE = Rule(
    code="GS207",
    name="uniform-attention",
    severity="warning",
    summary="an attention layer weights all keys alike, while the model learns",
    what=(
        "Reads the evenness of each head: the entropy of its weights over the logarithm of the "
        "visible keys. It fires if that stays at 1 in every head of an attention layer over many "
        "samples, although the loss fell."
    ),
    why=(
        "The attention averages over the sequence: its scores do not depend on the tokens. "
        "Either the mask shows only keys that are all alike, such as padding; or queries or keys "
        "are constant, detached, or scaled down; or their projections do not train."
    ),
    fix=(
        "Check that the mask shows the tokens and not the padding, that the logits are scaled by "
        "1 / √width once, and that the projections of queries and keys get a gradient and move."
    ),
    sources=(
        "Noci et al. 2022, Signal propagation in transformers (arXiv 2206.03126)",
        "PyTorch, scaled_dot_product_attention: True takes part in attention",
    ),
    thresholds=(
        Threshold(
            "distance",
            1e-6,
            ("distance of the evenness from 1 in every head, below which it fires"),
        ),
        Threshold(
            "loss",
            0.1,
            ("fall of the loss, as a share of its first value, above which it fires"),
            OWN,
        ),
        Threshold("samples", 12, "earlier samples needed to judge", OWN),
    ),
    calibration=(
        "Of 14 healthy trainings of small transformers, 320 to 600 steps long, 0 of 14 fire, "
        "and 1 of 1 broken ones is found. At GPT-2's initialisation, with width 32, the evenness "
        "is 2e-5 below 1; after 320 steps it is 5e-3 below 1. With a threshold of 1e-4, 1 of 14 "
        "could fire in its first steps."
    ),
    runs=Runs(samples=8, samples_before="samples", per="model", calls=True, structure="attention"),
)


def find_over_samples(history: SampleHistory, limits: Limits) -> Findings:
    """Yield at most one finding, of the first such attention."""
    loss = None if history.now is None else history.now.report.loss
    if loss is None or history.loss is None or not math.isfinite(history.loss):
        return
    fallen = 1 - loss / history.loss if history.loss > 0 else 0.0
    if fallen < limits["loss"]:
        return
    for part in history.parts:
        call = part.now
        if not isinstance(call, AttentionCall) or part.count <= limits["samples"]:
            continue
        even = [1 - x for x in call.evenness if x is not None]
        if even and call.keys > 2 and max(even) < limits["distance"]:
            yield RULE.finding(
                call.name,
                f"all {len(even)} heads weight their keys alike (evenness 1 to within "
                f"{number(max(even))}), while the loss fell by {percent(fallen)}.",
                call=call.call,
                value=max(even),
                limit=limits.of("distance"),
            )
            return
