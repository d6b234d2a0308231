"""GS866: a contrastive loss whose positive is the sample itself."""

from __future__ import annotations

from gradscope.records.loop import LoopRecord
from gradscope.rules._loop import LoopFindings, in_steps, of_loss, operations
from gradscope.rules._rule import CHOSEN, SILENT_ON_TWINS, Limits, Rule, Runs, Threshold

RULE = Rule(
    code="GS866",
    name="own-positive",
    severity="error",
    summary="in a contrastive loss, the positive of each sample is the sample itself",
    what=(
        "Reads the scores and targets of a cross entropy over pairs. It fires if the scores are "
        "a symmetric matrix, the similarities of a batch with itself, and the target of each row "
        "is its diagonal element. Nothing else may be in the loss."
    ),
    why=(
        "The similarity of a sample with itself is the largest for any weights. The loss falls "
        "by pushing samples apart, and two views of a sample never become similar."
    ),
    fix=(
        "Compare two views, `z1 @ z2.T`. Or mask the diagonal of `z @ z.T` with -inf, and take "
        "the other view of each sample as its target."
    ),
    sources=(
        "Chen et al. 2020, SimCLR, equation 1: the sum leaves the sample itself out",
        "PyTorch Lightning tutorials, SimCLR: the self-similarity is masked out",
    ),
    thresholds=(Threshold("share", 0.9, "share of the losses read, above which it fires", CHOSEN),),
    calibration=SILENT_ON_TWINS,
    runs=Runs(loop=True),
    explains=("GS6",),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding."""
    for one in operations(loop, "own-positive", limits["share"]):
        rows = f"{one.figures[0]:g}"
        yield RULE.in_loop(
            loop,
            "",
            f"each sample is its own positive: the scores [{rows}, {rows}] are similarities "
            "of a batch with itself, and the target of each row is its diagonal element, "
            f"{in_steps(one.count, loop.graphs, 'loss', 'losses')} that were read.",
            value=float(one.count),
            limit=limits.of("share"),
            location=of_loss(loop, one),
        )
