"""GS857: activations that never run, between layers that follow each other."""

from __future__ import annotations

from gradscope.records.loop import LoopRecord
from gradscope.rules._loop import LoopFindings, these
from gradscope.rules._rule import SILENT_ON_TWINS, Limits, Rule, Runs

RULE = Rule(
    code="GS857",
    name="unused-activation",
    severity="warning",
    summary="an activation never runs, and linear layers follow each other",
    what=(
        "Notes the first call of each activation module, such as nn.ReLU. It fires if one "
        "never ran, and most of the linear or convolution layers beside it get the output of "
        "another with only linear operations between them. An unused activation alone is "
        "silent: the script may call the function instead."
    ),
    why=(
        "Linear layers without an activation between them are one linear layer: depth adds nothing."
    ),
    fix=("Call the activation between the layers in `forward`."),
    sources=(
        "CS231n, neural networks part 1: without it the two matrices collapse to one",
        "PyTorch forum: forgot the activation function between linear layers",
    ),
    calibration=SILENT_ON_TWINS,
    runs=Runs(loop=True),
    explains=("GS603", "GS613"),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for each module."""
    for one in loop.facts_of("unused-activation"):
        *unused, before = one.words
        yield RULE.in_loop(
            loop,
            one.name,
            f"{these(unused)} never ran: `{one.name}` gets the output of `{before}` without an "
            "activation between them, and both are one linear layer.",
            value=float(one.count),
            location=one.location,
            model=one.model,
        )
