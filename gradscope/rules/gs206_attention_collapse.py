"""GS206: attention that falls on one key alone."""

from __future__ import annotations

from gradscope.records.transformer import AttentionCall
from gradscope.rules._history import SampleHistory
from gradscope.rules._rule import OWN, Findings, Limits, Rule, Runs, Threshold
from gradscope.rules._words import number

RULE = Rule(
    code="GS206",
    name="attention-collapse",
    severity="warning",
    summary="every head of an attention layer puts all weight on one key",
    what=(
        "Reads the evenness of each head: the entropy of its weights over the logarithm of the "
        "visible keys. It fires if that is close to 0 in every head of an attention layer, and "
        "was higher in the first sample."
    ),
    why=(
        "The softmax is saturated: the gradient of queries and keys is close to zero, so the "
        "attention cannot learn to look elsewhere. Trainings whose attention collapses are "
        "unstable."
    ),
    fix=(
        "Lower the learning rate or warm it up for longer; normalise queries and keys (QK-norm), "
        "and check the scale of the logits: 1 / √width."
    ),
    sources=(
        "Zhai et al. 2023, Preventing attention entropy collapse (arXiv 2303.06296)",
        "Dehghani et al. 2023, Scaling ViT to 22B parameters (arXiv 2302.05442)",
    ),
    thresholds=(
        Threshold("evenness", 0.02, "evenness of the most even head, below which it fires", OWN),
        Threshold(
            "fall",
            0.1,
            ("evenness divided by the mean of the first sample, below which it fires"),
            OWN,
        ),
    ),
    calibration=(
        "Of 14 healthy trainings of small transformers, 320 to 600 steps long, 0 of 14 fire, "
        "and 1 of 1 broken ones is found. The lowest evenness of a healthy one's most even head is "
        "0.36."
    ),
    runs=Runs(samples=3, samples_before=1, per="model", calls=True, structure="attention"),
    explains=("GS103", "GS101", "GS603", "GS605"),
)


def find_over_samples(history: SampleHistory, limits: Limits) -> Findings:
    """Yield at most one finding, of the attention with the lowest evenness."""
    lowest: tuple[float, float, AttentionCall] | None = None
    for part in history.parts:
        if not isinstance(part.now, AttentionCall) or not isinstance(part.first, AttentionCall):
            continue
        now = [x for x in part.now.evenness if x is not None]
        before = [x for x in part.first.evenness if x is not None]
        if not now or not before or part.count < 2:
            continue
        most, usual = max(now), sum(before) / len(before)
        if most < limits["evenness"] and most < limits["fall"] * usual:
            lowest = min(lowest or (most, usual, part.now), (most, usual, part.now), key=_first)
    if lowest is None:
        return
    most, usual, call = lowest
    yield RULE.finding(
        call.name,
        f"every head puts nearly all weight on one key: the evenness is {number(most)} or less, "
        f"and was {number(usual)} in the first sample.",
        call=call.call,
        value=most,
        limit=limits.of("evenness"),
    )


def _first(found: tuple[float, float, AttentionCall]) -> float:
    return found[0]
