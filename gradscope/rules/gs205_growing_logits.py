"""GS205: attention logits that grow."""

from __future__ import annotations

from gradscope.records.transformer import AttentionCall
from gradscope.rules._history import SampleHistory
from gradscope.rules._rule import OWN, Findings, Limits, Rule, Runs, Threshold
from gradscope.rules._words import number

_SOURCE = "Kimi K2 (arXiv 2507.20534), τ of QK-Clip"

RULE = Rule(
    code="GS205",
    name="growing-logits",
    severity="warning",
    summary="the attention logits grow far beyond what a softmax needs",
    what=(
        "Reads the largest attention logit of each head at each sampled step. It fires if that "
        "is large, and several times its value in the first sample."
    ),
    why=(
        "A softmax of large logits puts all weight on one key, and its gradient vanishes. Large "
        "models diverge after their logits have grown. In half precision, rounding of such "
        "logits alone changes the attention weights."
    ),
    fix=(
        "Normalise queries and keys before their product (QK-norm), lower the learning rate of "
        "the projections, warm it up for longer, or cap the logits."
    ),
    sources=(
        "Dehghani et al. 2023, Scaling ViT to 22B parameters (arXiv 2302.05442), QK-norm",
        "Wortsman et al. 2023 (arXiv 2309.14322): attention logit growth in small models too",
        "Kimi K2 2025 (arXiv 2507.20534): QK-Clip acts if the largest logit exceeds 100",
    ),
    thresholds=(
        Threshold("logit", 100, "largest logit of a head, above which it fires", _SOURCE),
        Threshold(
            "growth",
            4,
            "largest logit divided by its value in the first sample, above which it fires",
            OWN,
        ),
    ),
    calibration=(
        "Of 14 healthy trainings of small transformers, 320 to 600 steps long, 0 of 14 fire: "
        "their largest logits stay below 11. Without a norm at 30 times the rate 2 of 2 are found, "
        "5 to 20 steps after they began."
    ),
    runs=Runs(samples=2, samples_before=1, per="model", calls=True, structure="attention"),
    explains=("GS206", "GS601", "GS602"),
)


def find_over_samples(history: SampleHistory, limits: Limits) -> Findings:
    """Yield at most one finding, of the largest logit."""
    found: tuple[float, float, int, AttentionCall] | None = None
    for part in history.parts:
        if not isinstance(part.now, AttentionCall) or not isinstance(part.first, AttentionCall):
            continue
        before = max((x for x in part.first.logit_max if x is not None), default=None)
        for head, now in enumerate(part.now.logit_max):
            if now is None or before is None or part.count < 2 or now <= limits["logit"]:
                continue
            if now > limits["growth"] * abs(before) and (found is None or now > found[0]):
                found = now, before, head, part.now
    if found is None:
        return
    now, before, head, call = found
    yield RULE.finding(
        call.name,
        f"the largest attention logit is {number(now)}, in head {head}; it was {number(before)} in "
        "the first sample.",
        call=call.call,
        value=now,
        limit=limits.of("logit"),
    )
