"""GS865: a triplet loss that gets the negative in the place of the anchor or the positive."""

from __future__ import annotations

from gradscope.records.loop import LoopRecord
from gradscope.rules._loop import LoopFindings, enough
from gradscope.rules._rule import SILENT_ON_TWINS, Limits, Rule, Runs
from gradscope.rules._words import plural

RULE = Rule(
    code="GS865",
    name="exchanged-triplet",
    severity="error",
    summary="a triplet loss gets the negative in the place of the anchor or the positive",
    what=(
        "Reads the call of `triplet_margin_loss` or `nn.TripletMarginLoss` in the script's text. "
        "It fires if the names of the three arguments say anchor, positive and negative, and "
        "the negative is not the last."
    ),
    why=(
        "The loss moves the negative closer, and the third argument away. The loss falls as "
        "usual, and embeddings of one class end up apart."
    ),
    fix="Give the arguments in the order anchor, positive, negative.",
    sources=(
        "PyTorch, torch.nn.TripletMarginLoss: the inputs are anchor, positive, negative",
        "Schroff et al. 2015, FaceNet (arXiv 1503.03832), section 3.1",
    ),
    calibration=SILENT_ON_TWINS,
    runs=Runs(loop=True),
    explains=("GS603", "GS613"),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for each call."""
    for one in loop.facts_of("exchanged-triplet"):
        if not enough(loop, one.count):
            continue
        yield RULE.in_loop(
            loop,
            "",
            f"the triplet loss takes `{one.words[2]}` as its negative, and "
            f"`{one.words[1]}` as its positive, in {plural(one.count, 'call')}.",
            advice="The order is anchor, positive, negative.",
            value=float(one.count),
            location=one.location,
        )
