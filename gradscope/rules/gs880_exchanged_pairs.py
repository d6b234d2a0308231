"""GS880: a contrastive loss that draws pairs of different classes together."""

from __future__ import annotations

from gradscope.records.loop import LoopRecord
from gradscope.rules._loop import LoopFindings, in_steps, of_loss, operations
from gradscope.rules._rule import CHOSEN, SILENT_ON_TWINS, Limits, Rule, Runs, Threshold

RULE = Rule(
    code="GS880",
    name="exchanged-pairs",
    severity="error",
    summary="a contrastive loss draws pairs of different classes together",
    what=(
        "Reads the text at the losses of the sampled steps. It fires if a sum has the form "
        "`(1 - y) * d**2 + y * relu(margin - d)**2`, and `y` is 1 for pairs of one class. The "
        "text must say so: by its name, as `same`, or by `y = (a == b).float()` of labels; and it "
        "must show that `d` is a distance, not a similarity. It also fires if both are the other "
        "way round."
    ),
    why=(
        "Pairs of one class are pushed apart to the margin, and others are drawn together. The "
        "loss falls as usual."
    ),
    fix="Exchange `y` and `1 - y` in the loss, or the labels in the data.",
    sources=(
        "Hadsell et al. 2006, Dimensionality reduction by learning an invariant mapping: in its "
        "loss, Y = 0 is a similar pair",
        "PyTorch forum: contrastive loss, label 0 or 1 for a similar pair",
    ),
    thresholds=(
        Threshold(
            "share", 0.95, "share of the losses that were read, above which it fires", CHOSEN
        ),
    ),
    calibration=SILENT_ON_TWINS,
    runs=Runs(loop=True),
    explains=("GS603", "GS613"),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for each label."""
    for number, one in enumerate(operations(loop, "exchanged-pairs", limits["share"])):
        ones = "one class" if one.words[1] == "same" else "different classes"
        yield RULE.in_loop(
            loop,
            "",
            f"`{one.name}` is 1 for pairs of {ones}, and the loss is for the opposite: it draws "
            "pairs of different classes together and pushes pairs of one class apart, "
            f"{in_steps(one.count, loop.graphs, 'loss', 'losses')}.",
            value=float(one.count),
            limit=limits.of("share"),
            cause=str(number) if number else None,
            location=of_loss(loop, one),
        )
