"""GS864: a functional dropout that is active in evaluation."""

from __future__ import annotations

from gradscope.records.loop import LoopRecord
from gradscope.rules._loop import LoopFindings
from gradscope.rules._rule import SILENT_ON_TWINS, Limits, Rule, Runs

RULE = Rule(
    code="GS864",
    name="dropout-in-evaluation",
    severity="warning",
    summary="a functional dropout without `training=` drops activations in evaluation",
    what=(
        "Reads the classes of the script's own modules. It fires if one calls `F.dropout` "
        "without `training=`, and the model is called in eval mode without gradients. "
        "`training=True` in the text, and a call within `if self.training`, are silent."
    ),
    why=(
        "`training` is True by default: `model.eval()` does not turn it off. Results of the "
        "evaluation are random and too low."
    ),
    fix=("Write `F.dropout(x, p, training=self.training)`, or use `nn.Dropout`."),
    sources=(
        "PyTorch, torch.nn.functional.dropout: training defaults to True",
        "PyTorch forum: F.dropout is active after model.eval()",
    ),
    calibration=SILENT_ON_TWINS,
    runs=Runs(loop=True),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for each call."""
    events = [*(event for one in loop.rounds for event in one.events), *loop.rest]
    evaluated = {one.of for one in events if one.kind == "evaluation" and "eval" in one.facts}
    for one in loop.facts_of("written-dropout"):
        if one.model not in evaluated:
            continue
        (text,) = one.words
        yield RULE.in_loop(
            loop,
            "",
            f"`{text}` stays active in eval mode: `training` is True by default.",
            value=1.0,
            cause=one.location,
            location=one.location,
            model=one.model,
        )
