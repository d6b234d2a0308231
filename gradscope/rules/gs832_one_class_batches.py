"""GS832: every batch holds a single class, and the class changes from batch to batch."""

from __future__ import annotations

from gradscope.records.loop import LoopRecord
from gradscope.rules._loop import LoopFindings, of_loss
from gradscope.rules._rule import CHOSEN, Limits, Rule, Runs, Threshold
from gradscope.rules._words import plural

RULE = Rule(
    code="GS832",
    name="one-class-batches",
    severity="warning",
    summary="nearly every batch has targets of one class only: the data are not shuffled",
    what=(
        "Reads the targets of the cross entropy in the sampled steps. It fires if all targets of "
        "a batch are of one class, and other batches have another class."
    ),
    why=(
        "Each step learns one class and forgets the others: the loss of one batch is low, and "
        "that of the next class's batch high."
    ),
    fix="Shuffle: `DataLoader(…, shuffle=True)`, or a permutation of data sorted by class.",
    sources=(
        "PyTorch, torch.utils.data.DataLoader: shuffle",
        "Bengio 2012, Practical recommendations for gradient-based training: order of the examples",
    ),
    thresholds=(
        Threshold("batches", 5, "batches of 8 targets needed to judge", CHOSEN),
        Threshold(
            "share", 0.8, "share of batches of one class, at or above which it fires", CHOSEN
        ),
    ),
    runs=Runs(loop=True),
    explains=("GS103", "GS513", "GS601", "GS602", "GS603", "GS613"),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for the losses on each layer's scores."""
    for place, one in enumerate(loop.targets):
        if one.value is not None or one.loss != "cross_entropy" or one.judged < limits["batches"]:
            continue
        if one.single < limits["share"] * one.judged or one.kinds < 2:
            continue
        yield RULE.in_loop(
            loop,
            "",
            f"all targets of a batch are one class in {one.single:,} of "
            f"{plural(one.judged, 'batch', 'batches')} that were read, and the class differs "
            "between batches: the data are sorted by class, not shuffled.",
            value=one.single / one.judged,
            limit=limits.of("share"),
            cause=str(place) if place else None,
            location=loop.loader_at or of_loss(loop, one),
        )
