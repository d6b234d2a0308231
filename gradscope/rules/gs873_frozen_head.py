"""GS873: the layer that gives the scores is frozen as its constructor made it."""

from __future__ import annotations

from gradscope.records.loop import LoopRecord
from gradscope.rules._loop import LoopFindings
from gradscope.rules._rule import SILENT_ON_TWINS, Limits, Rule, Runs
from gradscope.rules._words import plural

RULE = Rule(
    code="GS873",
    name="frozen-head",
    severity="warning",
    summary="the layer that gives the scores is frozen at its random initial weights",
    what=(
        "Finds the layer whose output is the scores of a cross entropy, in the sampled steps. It "
        "fires if its weight is frozen and in no optimizer, while its bias trains, or "
        "`load_state_dict` has set other parts of the model and not this one. The weight must be "
        "distributed as the constructor draws it: a fixed simplex is silent."
    ),
    why=(
        "A new head must train. Most often a filter of names freezes it along with the layers "
        "that were loaded: the head is called `classifier`, and the filter keeps `fc`."
    ),
    fix=(
        "Print the names of the trainable parameters. Freeze the backbone by its module, "
        "`model.backbone.requires_grad_(False)`, and not by a part of the names."
    ),
    sources=(
        "PyTorch tutorials, transfer learning: the new fc has requires_grad=True by default",
        "PyTorch forum: how the pytorch freeze network in some layers, only the rest of the "
        "training",
    ),
    calibration=SILENT_ON_TWINS,
    runs=Runs(loop=True),
    explains=("GS403", "GS603", "GS605", "GS613"),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for each layer."""
    for one in loop.facts_of("frozen-head") if loop.ended or loop.steps >= 5 else ():
        yield RULE.in_loop(
            loop,
            one.name,
            f"`{one.name}` gives the scores of the loss, and its weight is frozen at its "
            "random initial values: nothing has loaded it. "
            f"{plural(one.count, 'other parameter')} of the model "
            f"{'trains' if one.count == 1 else 'train'}.",
            value=float(one.count),
            location=one.location,
            model=one.model,
        )
