"""GS876: pairs whose target is neither 1 nor -1."""

from __future__ import annotations

from gradscope.records.loop import LoopRecord
from gradscope.rules._loop import LoopFindings, in_steps, of_loss, operations
from gradscope.rules._rule import CHOSEN, SILENT_ON_TWINS, Limits, Rule, Runs, Threshold

RULE = Rule(
    code="GS876",
    name="pair-targets",
    severity="error",
    summary="a cosine embedding loss gets targets other than 1 and -1",
    what=(
        "Reads the graph of a loss in the sampled steps. It fires if `cosine_embedding_loss` "
        "has pairs whose target is neither 1 nor -1: it gives them a loss of 0."
    ),
    why=(
        "With targets of 0 and 1 only the similar pairs count. The loss falls to 0 as all "
        "embeddings become one vector."
    ),
    fix="Give 1 for similar pairs and -1 for others: `2 * same - 1`.",
    sources=(
        "PyTorch, torch.nn.CosineEmbeddingLoss: y is 1 or -1",
        "Stack Overflow: PyTorch CosineEmbeddingLoss, labels of 0 and 1",
    ),
    calibration=SILENT_ON_TWINS,
    thresholds=(Threshold("share", 0.5, "share of the read losses, above which it fires", CHOSEN),),
    runs=Runs(loop=True),
    explains=("GS513", "GS603", "GS613"),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield at most one finding."""
    for one in operations(loop, "pair-targets", limits["share"]):
        yield RULE.in_loop(
            loop,
            "",
            f"`{one.name}` gets targets other than 1 and -1 "
            f"{in_steps(one.count, loop.graphs, 'loss', 'losses')} that were read: these pairs "
            "add no loss.",
            value=float(one.count),
            threshold=limits["share"],
            location=of_loss(loop, one),
        )
