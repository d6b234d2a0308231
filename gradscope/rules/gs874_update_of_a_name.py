"""GS874: an update written by hand that changes a variable, not the parameter."""

from __future__ import annotations

from dataclasses import replace

from gradscope.records.loop import LoopRecord
from gradscope.rules._loop import STEPS, LoopFindings
from gradscope.rules._rule import SILENT_ON_TWINS, Limits, Rule, Runs
from gradscope.rules._words import plural

RULE = Rule(
    code="GS874",
    name="update-of-a-name",
    severity="error",
    summary="an update by hand sets the loop's variable, not the parameter",
    what=(
        "Reads the text of the script. It fires if a loop over `parameters()`, or over a list of "
        "variables, ends with an "
        "assignment such as `p = p - rate * p.grad`, backward ran, and no optimizer made a "
        "step. A loop that uses the new value afterwards is silent."
    ),
    why=(
        "The assignment creates a tensor and binds the variable to it: the model keeps its "
        "initial weights."
    ),
    fix="Change the parameter in place: `p -= rate * p.grad`, under `torch.no_grad()`.",
    sources=(
        "PyTorch tutorials, learning PyTorch with examples: updates in place under no_grad",
        "PyTorch forum: updating the parameters of a model manually, in a for loop",
    ),
    calibration=SILENT_ON_TWINS,
    runs=Runs(loop=True),
    explains=("GS603", "GS613"),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for each such line."""
    if not loop.ended or loop.backwards < STEPS or any(one.steps for one in loop.optimizers):
        return
    for one in loop.facts_of("rebound"):
        name = one.name
        found = RULE.in_loop(
            loop,
            "",
            f"the update `{name} = …` sets the variable `{name}`, not the parameter: it changes no "
            f"weight, in {plural(loop.backwards, 'backward')}.",
            advice=f"Write `{name} -= …`, or `{name}.copy_(…)`, under `torch.no_grad()`.",
            value=float(loop.backwards),
            threshold=float(STEPS),
            location=one.location,
        )
        yield replace(found, steps=((1, loop.backwards),))
