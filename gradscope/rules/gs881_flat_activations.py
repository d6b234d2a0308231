"""GS881: saturated activations in a network that is written without modules."""

from __future__ import annotations

from dataclasses import replace

from gradscope.records.loop import LoopRecord
from gradscope.rules._loop import STEPS, LoopFindings
from gradscope.rules._rule import SILENT_ON_TWINS, Limits, Rule, Runs, Threshold
from gradscope.rules._words import percent, plural

RULE = Rule(
    code="GS881",
    name="flat-activations",
    severity="warning",
    summary="most values of a tanh or a sigmoid are saturated, in a network without modules",
    what=(
        "Reads the results of `tanh` and `sigmoid` in the loss graphs of sampled steps, if the "
        "script trains no torch.nn.Module. It fires if, in each of them, more than half of the "
        "values are where the slope is under 6 % of the steepest, such as a tanh beyond 0.97. "
        "With modules, GS202 counts saturated units."
    ),
    why="The gradient of a saturated value is nearly zero: the weights before it hardly learn.",
    fix=(
        "Start from smaller weights: `torch.randn(n, m) * n ** -0.5`, and biases of zero. "
        "Normalize the input."
    ),
    sources=(
        "Karpathy, makemore part 3: tanh output beyond 0.97, weights from plain randn",
        "Glorot and Bengio 2010, Understanding the difficulty of training deep networks",
    ),
    thresholds=(
        Threshold(
            "share", 0.5, "share of the values in every graph, above which it fires",
            source="as GS202",
        ),
    ),
    calibration=SILENT_ON_TWINS,
    runs=Runs(loop=True),
    explains=("GS603",),
)  # fmt: skip


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding: the saturated activation that is next to the input."""
    flat = [one for one in loop.facts_of("flat") if one.figures[0] > limits["share"]]
    if not flat or flat[0].count < STEPS:
        return
    first = flat[-1]
    (share,) = first.figures
    others = f", as in {plural(len(flat) - 1, 'other activation')}" if len(flat) > 1 else ""
    found = RULE.in_loop(
        loop,
        "",
        f"at least {percent(share)} of the values of a {first.name} are saturated in each of "
        f"{plural(first.count, 'graph')} that were read{others}.",
        value=share,
        limit=limits.of("share"),
        location=first.location,
    )
    yield replace(found, steps=((1, max(loop.steps, loop.backwards)),))
