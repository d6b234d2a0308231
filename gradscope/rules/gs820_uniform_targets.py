"""GS820: targets that are all of one class."""

from __future__ import annotations

from gradscope.records.loop import LoopRecord
from gradscope.rules._loop import LoopFindings, of_loss
from gradscope.rules._rule import CHOSEN, Limits, Rule, Runs, Threshold
from gradscope.rules._words import plural

RULE = Rule(
    code="GS820",
    name="uniform-targets",
    severity="warning",
    summary="all targets of a loss are the same class, or the same number",
    what=(
        "Reads the targets of a cross entropy, a binary one, or a squared error, in the sampled "
        "steps. It fires if all targets of all batches are equal. Before it reports during the "
        "run, it reads the targets of 64 more steps. The scores of classes must come from a "
        "trainable layer with one output per class: a contrastive loss, whose positive is always "
        "at the same index, does not count. A binary loss may also be on products of embeddings. "
        "Losses with class weights do not count, nor a squared error, or such a product, beside "
        "other terms of the loss or other backwards."
    ),
    why=(
        "The network learns one answer for everything, and the loss falls to 0, which looks like "
        "success. Most often the labels are compared, indexed or encoded wrongly, or the data "
        "are sorted by class."
    ),
    fix="Look at `torch.bincount(labels)`, and at the code that makes and shuffles the labels.",
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


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for the losses on each layer's scores."""
    rounded = next(iter(loop.facts_of("truncated-masks")), None)
    for place, one in enumerate(loop.targets):
        batches = one.batches - one.empty
        if one.value is None or one.least < limits["targets"]:
            continue
        if batches < limits["batches" if loop.ended else "going"] or one.classes == 1:
            continue
        # As of a condition at the edge, or of a penalty; pairs may have a contrast beside them, or
        # in a backward of its own.
        if not (one.classes and one.layer) and (one.beside or one.batches < loop.graphs):
            continue
        classes = one.loss == "cross_entropy"
        what = f"class {one.value:g} of {one.classes:,}" if classes else f"{one.value:g}"
        why = rounded if one.value == 0 else None
        yield RULE.in_loop(
            loop,
            "",
            f"all {one.targets - one.ignored:,} targets that were read are {what}, in "
            f"{plural(batches, 'batch', 'batches')}: the network can ignore its input."
            + (f" `{why.words[0]}` rounds them down: ToTensor divides by 255." if why else ""),
            advice="Make the mask without ToTensor: `torch.from_numpy(np.array(mask)).long()`."
            if why
            else None,
            value=float(batches),
            limit=limits.of("batches"),
            cause=str(place) if place else None,
            location=(why and why.location) or one.made_at or of_loss(loop, one),
        )
