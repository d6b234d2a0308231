"""GS884: transitions of a replay buffer that share one array."""

from __future__ import annotations

from gradscope.records.loop import LoopRecord
from gradscope.rules._loop import LoopFindings
from gradscope.rules._rule import Limits, Rule, Runs
from gradscope.rules._words import plural

RULE = Rule(
    code="GS884",
    name="shared-array",
    severity="warning",
    summary="the items of a replay buffer share an array that the script changes in place",
    what=(
        "Searches the lists in the script's variables, in three of the sampled steps, for tuples "
        "of four fields and more, one of which is a number: transitions. It fires if one array is "
        "in all items, or if two fields of each item are one array, and the script's text writes "
        "into this array, other than where it has just made a new one."
    ),
    why=(
        "A list stores a reference, not the numbers: each write changes all items that hold the "
        "array. State and next state are then equal, and both are the latest one. Most often the "
        "environment returns its own state."
    ),
    fix="Return or store a copy: `self.state.copy()` for NumPy, `self.state.clone()` for PyTorch.",
    sources=(
        "Python, copy: assignment statements do not copy objects",
        "PyTorch forum: replay buffer, all states are the same",
    ),
    runs=Runs(loop=True),
    explains=("GS103", "GS513", "GS613", "GS833"),
)  # fmt: skip


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for each buffer."""
    for number, one in enumerate(loop.facts_of("shared-array")):
        items, (written_at, *fields) = plural(one.count, "item"), one.words
        held = f"all {items} of `{one.name}` hold one array"
        if fields:
            held = f"fields {' and '.join(fields)} of all {items} of `{one.name}` are one array"
        yield RULE.in_loop(
            loop,
            one.name,
            f"{held}, changed in place at {written_at}: earlier transitions change too.",
            value=float(one.count),
            cause=str(number) if number else None,
            location=one.location,
        )
