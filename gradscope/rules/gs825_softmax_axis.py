"""GS825: a softmax that does not run over the classes, or a norm not over the features."""

from __future__ import annotations

from gradscope.records.loop import LoopRecord
from gradscope.records.loop_figures import LossOperation
from gradscope.rules._loop import LoopFindings, in_steps, of_loss, operations
from gradscope.rules._rule import CHOSEN, Limits, Rule, Runs, Threshold

RULE = Rule(
    code="GS825",
    name="softmax-axis",
    severity="error",
    summary="a softmax or a normalization before a classification loss runs over the wrong axis",
    what=(
        "Finds, in the graph of the loss, the softmax whose result goes into `nll_loss` or "
        "`cross_entropy`, and reads its axis. These losses expect the classes in axis 1. A "
        "linear layer's output with three axes has them in the last. Follows views and exchanged "
        "axes between the two, and `gather` along the last axis. Also finds scores that are "
        "products of embeddings, as in a contrastive loss, if these are normalized along the batch."
    ),
    why=(
        "The probabilities of one sample do not sum to 1, or the norm of one embedding is not 1, "
        "and different samples compete. The loss falls but means nothing."
    ),
    fix="Use `dim=1`, or `cross_entropy` on the scores, which includes the softmax; for "
    "embeddings `F.normalize(x, dim=-1)`.",
    sources=(
        "PyTorch, torch.nn.NLLLoss: the input has size (N, C) or (N, C, d1, …, dK)",
        "PyTorch, torch.nn.functional.log_softmax: dim",
        "PyTorch, torch.nn.functional.normalize: dim is the dimension to reduce",
    ),
    thresholds=(Threshold("share", 0.2, "share of the losses read, above which it fires", CHOSEN),),
    runs=Runs(loop=True),
    explains=("GS603", "GS613"),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for each operation."""
    for one in operations(loop, "softmax-axis", limits["share"]):
        shape = ", ".join(map(str, one.shapes[0]))
        classes, advice = _CLASSES_AT[_where_classes_are(one)]
        yield RULE.in_loop(
            loop,
            "",
            f"`{one.name}` of [{shape}] {_goes(one)} "
            f"{in_steps(one.count, loop.graphs, 'loss', 'losses')} that were read: {classes}.",
            advice=advice,
            value=float(one.count),
            threshold=limits["share"],
            cause=one.name,
            location=of_loss(loop, one),
        )
    for one in operations(loop, "normalize-axis", limits["share"]):
        rows, columns = map(int, one.figures)
        yield RULE.in_loop(
            loop,
            "",
            f"embeddings [{rows}, {columns}] are normalized along the batch and not along "
            f"their {columns} features, "
            f"{in_steps(one.count, loop.graphs, 'loss', 'losses')} that were read: their "
            "products are no cosines.",
            advice="Normalize each embedding: `F.normalize(x, dim=-1)`.",
            value=float(one.count),
            threshold=limits["share"],
            cause=one.name,
            location=of_loss(loop, one),
        )


#: Where the classes are, and what to do.
_CLASSES_AT = {
    "moved": (
        "the classes are in the last axis",
        "Use `dim=-1`, or `cross_entropy` on the scores, which includes the softmax.",
    ),
    "other": (
        "the classes are in another axis",
        "Use the axis of the classes, or `cross_entropy` on the scores.",
    ),
    "last": (
        "the classes are in the last axis",
        "Give the scores as [N, C, …]: `scores.transpose(1, 2)`, or flatten all axes but the last.",
    ),
    "second": ("the classes are dim 1", "Use `dim=1`, or `cross_entropy` on the scores."),
}


def _where_classes_are(one: LossOperation) -> str:
    """Return the key of the words on the axis of the classes."""
    if len(one.shapes) > 1:
        scores, given = one.shapes
        return "moved" if given[-1] == 1 or given[1] == scores[-1] else "other"
    return "last" if one.name.endswith(" 1") else "second"


def _goes(one: LossOperation) -> str:
    """Return the words on the way to the loss."""
    if len(one.shapes) < 2:
        return "goes into `nll_loss`"
    given = ", ".join(map(str, one.shapes[1]))
    if one.shapes[1][-1] == 1:
        return f"goes into `gather` with an index [{given}]"
    return f"goes into `nll_loss` as [{given}]"
