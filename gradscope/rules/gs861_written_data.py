"""GS861: a data set that changes its own data when it is read."""

from __future__ import annotations

from gradscope.records.loop import LoopRecord
from gradscope.rules._loop import LoopFindings
from gradscope.rules._rule import CHOSEN, SILENT_ON_TWINS, Limits, Rule, Runs, Threshold

RULE = Rule(
    code="GS861",
    name="written-data",
    severity="warning",
    summary="a data set changes its own data each time it gives a batch",
    what=(
        "Compares the version counters of a data set's tensors before and after it gives a "
        "batch, in the same process. It fires if nearly every batch writes to them, in more "
        "than one epoch. A cache that is filled once is silent."
    ),
    why=(
        "Noise, scaling or normalization adds up from epoch to epoch: the data drift away "
        "from the labels."
    ),
    fix=(
        "Write `x = x + noise` in place of `x += noise` in `__getitem__`, or clone the sample "
        "first."
    ),
    sources=(
        "PyTorch forum: in-place operations in Dataset.__getitem__ change the data set",
        "PyTorch, torch.Tensor: in-place operations, views share the data",
    ),
    thresholds=(
        Threshold(
            "share", 0.9, "share of batches with a write, at or above which it fires", CHOSEN
        ),
        Threshold("batches", 8, "batches needed to judge", CHOSEN),
    ),
    calibration=SILENT_ON_TWINS,
    runs=Runs(loop=True),
    explains=("GS102", "GS204", "GS601", "GS602", "GS603", "GS613", "GS848"),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for each data set."""
    epochs = sum(
        sum(event.kind == "epoch" for event in one.events) * one.count for one in loop.rounds
    )
    for one in loop.facts_of("written-data"):
        (given,) = one.figures
        (attribute,) = one.words
        if one.count < limits["share"] * given or given < limits["batches"] or epochs < 2:
            continue
        yield RULE.in_loop(
            loop,
            one.name,
            f"the data set `{one.name}` writes to its own `{attribute}` in {one.count:,} of "
            f"{given:,.0f} batches: its data change with each epoch.",
            value=one.count / given,
            limit=limits.of("share"),
            location=one.location,
        )
