"""GS852: a layer that is made anew in each forward."""

from __future__ import annotations

from gradscope.records.loop import LoopRecord
from gradscope.rules._loop import LoopFindings, in_steps
from gradscope.rules._rule import CHOSEN, Limits, Rule, Runs, Threshold

RULE = Rule(
    code="GS852",
    name="layer-made-in-forward",
    severity="error",
    summary="forward makes a new layer with parameters in each step",
    what=(
        "Notes parameters that are registered while a model is called with gradients. It fires "
        "if the same line registers some in several steps. A layer made only in the first call, "
        "such as a lazy module, does not count."
    ),
    why=(
        "Each step has a new random layer that no optimizer holds: it never trains, and the "
        "layers before it adapt to a layer that is then replaced."
    ),
    fix=("Make the layer in `__init__`, and call it in `forward`."),
    sources=(
        "PyTorch tutorials, what is torch.nn: layers are attributes of the module",
        "PyTorch forum: defining layers in forward, parameters are not updated",
    ),
    thresholds=(Threshold("steps", 3, "steps needed to judge", CHOSEN),),
    runs=Runs(loop=True),
    explains=("GS401", "GS404", "GS804", "GS6"),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for each line."""
    for line, count in loop.made_in_forward:
        if count < limits["steps"]:
            continue
        yield RULE.in_loop(
            loop,
            "",
            f"forward makes new parameters {in_steps(count, loop.steps)}: no optimizer holds "
            "them, and they never train.",
            value=float(count),
            limit=limits.of("steps"),
            cause=line,
            location=line,
        )
