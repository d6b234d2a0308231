"""GS862: an iterator of a data loader that is used up."""

from __future__ import annotations

from gradscope.records.loop import LoopRecord
from gradscope.rules._loop import LoopFindings
from gradscope.rules._rule import CHOSEN, SILENT_ON_TWINS, Limits, Rule, Runs, Threshold

RULE = Rule(
    code="GS862",
    name="used-up-iterator",
    severity="error",
    summary="an iterator of a data loader is used again after its end",
    what=(
        "Notes when the iterator of a data loader, as `iter(loader)` makes one, is asked for "
        "batches after its end. It fires if that happens several times. A loader itself "
        "starts anew in each epoch."
    ),
    why=(
        "An iterator gives its batches once: the epochs after the first have none, and "
        "nothing trains."
    ),
    fix=("Loop over the loader itself, or call `iter(loader)` in each epoch."),
    sources=(
        "Python, iterator: once exhausted, an iterator stays exhausted",
        "PyTorch forum: the training loop runs only for the first epoch",
    ),
    thresholds=(Threshold("times", 2, "uses after the end needed to report", CHOSEN),),
    calibration=SILENT_ON_TWINS,
    runs=Runs(loop=True),
    explains=("GS603", "GS612", "GS613"),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for each iterator."""
    for one in loop.facts_of("used-up"):
        if one.count < limits["times"]:
            continue
        (batches,) = one.figures
        name = f"`{one.name}`" if one.name else "an iterator of a data loader"
        yield RULE.in_loop(
            loop,
            one.name,
            f"{name} ended after {batches:,.0f} batches and was used {one.count:,} times more: "
            "these epochs had no batch.",
            value=float(one.count),
            limit=limits.of("times"),
            location=one.location,
        )
