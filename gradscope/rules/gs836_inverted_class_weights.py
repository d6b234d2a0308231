"""GS836: class weights that favour the classes that are frequent anyway."""

from __future__ import annotations

from gradscope.records.loop import LoopRecord
from gradscope.rules._loop import LoopFindings, of_loss
from gradscope.rules._rule import CHOSEN, Limits, Rule, Runs, Threshold
from gradscope.rules._words import number

RULE = Rule(
    code="GS836",
    name="inverted-class-weights",
    severity="warning",
    summary="the class weights of a loss grow with the classes' frequency",
    what=(
        "Compares the `weight` of a cross entropy with the frequency of each class in the "
        "targets that were read. It fires if weights and frequencies vary widely, and the rarer "
        "class of nearly every pair has the smaller weight. A single `pos_weight` of a binary "
        "cross entropy is judged in the same way, beside a weight of 1 for the negatives."
    ),
    why=(
        "Class weights should compensate for rare classes. These reduce the rare ones further, "
        "and the network never predicts them."
    ),
    fix=(
        "Use the inverse: `weight = counts.sum() / (classes * counts)`, or "
        "`pos_weight = negatives / positives`."
    ),
    sources=(
        "PyTorch, torch.nn.CrossEntropyLoss: weight, useful for an unbalanced training set",
        "King and Zeng 2001, Logistic regression in rare events data: inverse class frequency",
    ),
    thresholds=(
        Threshold("spread", 2, (
            "largest divided by smallest, of the weights and of the counts, above which it fires"
        ),
                  CHOSEN),
        Threshold("pairs", 0.9, (
            "share of the pairs of classes whose rarer class has the smaller weight, at or above "
            "which it fires"
        ),
                  CHOSEN),
        Threshold("targets", 64, "targets needed to judge", CHOSEN),
    ),
    runs=Runs(loop=True),
    explains=("GS613", "GS820"),
)  # fmt: skip


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for each layer's scores."""
    for one in loop.targets:
        known = [pair for pair in zip(one.weights, one.counts, strict=False) if min(pair) > 0]
        if len(known) < 2 or sum(one.counts) < limits["targets"]:
            continue
        weights, counts = zip(*known, strict=True)
        spread = min(max(values) / min(values) for values in (weights, counts))
        pairs = [
            (a[0] - b[0]) * (a[1] - b[1]) > 0
            for i, a in enumerate(known)
            for b in known[:i]
            if a[0] != b[0] and a[1] != b[1]
        ]
        if spread <= limits["spread"] or sum(pairs) < limits["pairs"] * len(pairs):
            continue
        rare, frequent = min(known, key=lambda p: p[1]), max(known, key=lambda p: p[1])
        yield RULE.in_loop(
            loop,
            "",
            f"the class weights grow with the frequency: the rarest class ({rare[1]:,} "
            f"targets) has weight {number(rare[0])}, the most frequent ({frequent[1]:,}) "
            f"{number(frequent[0])}. Rare classes count less: use the inverse.",
            value=spread,
            limit=limits.of("spread"),
            location=one.weighted_at or of_loss(loop, one),
        )
