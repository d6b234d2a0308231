"""GS820: targets that are all of one class."""

from __future__ import annotations

from collections.abc import Iterator

from gradscope.records.loop import LoopRecord
from gradscope.records.training import TrainingFinding
from gradscope.rules._loop import at, of_loss
from gradscope.rules._rule import CHOSEN, Limits, Rule, Runs, Threshold
from gradscope.rules._words import plural

RULE = Rule(
    code="GS820",
    name="uniform-targets",
    severity="warning",
    summary="all targets of a loss are the same class, or the same number",
    what=(
        "Reads the targets of a cross entropy, a binary one, or a squared error, in the sampled "
        "steps. It fires where all targets of all batches are alike; before it says so while the "
        "run goes on, the "
        "targets of the next 64 steps are read, too. The scores must come from a layer that "
        "trains and has one output for each class: a contrastive loss, whose positive always has "
        "the same place, does not count, nor do losses with class weights, nor a squared error "
        "beside other terms of the loss."
    ),
    why=(
        "The network learns to give one answer to everything, and the loss falls to 0: it looks "
        "like success. Most often the labels are compared, indexed or encoded wrongly, or the "
        "data are sorted by class."
    ),
    fix="Look at the labels: `torch.bincount(labels)`, and at how they are made and shuffled.",
    sources=(
        "Karpathy 2019, A recipe for training neural networks: become one with the data",
        "DeepChecker and UMLAUT check labels before training: unbalanced, or of one class",
    ),
    thresholds=(
        Threshold("targets", 8, "targets of each batch needed to judge", CHOSEN),
        Threshold("batches", 5, "batches needed to judge", CHOSEN),
        Threshold("going", 32, "batches needed to judge while the run goes on", CHOSEN),
    ),
    runs=Runs(loop=True),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> Iterator[TrainingFinding]:
    """One finding for the losses on each layer's scores."""
    for place, one in enumerate(loop.targets):
        batches = one.batches - one.empty
        if one.value is None or one.least < limits["targets"]:
            continue
        if batches < limits["batches" if loop.ended else "going"] or one.classes == 1:
            continue
        if not one.classes and one.beside:  # as of a condition at the edge, or of a penalty
            continue
        classes = one.loss == "cross_entropy"
        what = f"class {one.value:g} of {one.classes:,}" if classes else f"{one.value:g}"
        yield at(
            RULE.finding(
                "",
                f"all {one.targets - one.ignored:,} targets that were read are {what}, in "
                f"{plural(batches, 'batch', 'batches')}: the network need not look at its input.",
                value=float(batches),
                limit=limits.of("batches"),
                cause=str(place) if place else None,
                location=of_loss(loop, one),
            ),
            loop,
        )
