"""GS859: a list with one module several times."""

from __future__ import annotations

from gradscope.records.loop import LoopRecord
from gradscope.rules._loop import LoopFindings
from gradscope.rules._rule import SILENT_ON_TWINS, Limits, Rule, Runs

RULE = Rule(
    code="GS859",
    name="repeated-module",
    severity="warning",
    summary="a list of layers holds the same module several times",
    what=(
        "Finds an nn.ModuleList or nn.Sequential all of whose members are the same module, "
        "where the script multiplies a list, as `[layer] * 4`. A module that is called "
        "several times, or repeated in another way, is silent: it may be shared on purpose."
    ),
    why=(
        "All members share one set of weights: the network has a fraction of the parameters "
        "that it seems to have."
    ),
    fix=("Make a new layer each time: `[make_layer() for _ in range(4)]`, or `copy.deepcopy`."),
    sources=(
        "Python FAQ: a multiplied list repeats references to the same object",
        "PyTorch forum: nn.ModuleList([layer] * n) shares the weights",
    ),
    calibration=SILENT_ON_TWINS,
    runs=Runs(loop=True),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for each list."""
    for one in loop.facts_of("repeated"):
        (kind,) = one.words
        yield RULE.in_loop(
            loop,
            one.name,
            f"the {one.count} members of `{one.name}` are the same {kind}: they share their "
            "weights.",
            value=float(one.count),
            location=one.location,
            model=one.model,
        )
