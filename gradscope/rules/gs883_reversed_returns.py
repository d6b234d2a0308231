"""GS883: discounted returns in the wrong order."""

from __future__ import annotations

from gradscope.records.loop import LoopRecord
from gradscope.rules._loop import LoopFindings
from gradscope.rules._rule import SILENT_ON_TWINS, Limits, Rule, Runs

RULE = Rule(
    code="GS883",
    name="reversed-returns",
    severity="warning",
    summary="discounted returns stay in the order from the last step to the first",
    what=(
        "Reads the text of the script. It fires if a loop over `reversed(rewards)` or "
        "`rewards[::-1]` computes `R = r + gamma * R` and appends it to a list, and nothing in "
        "that function turns the list round or returns it."
    ),
    why=(
        "The returns are multiplied with log-probabilities from the first step to the last: each "
        "action gets the return of another."
    ),
    fix="Use `returns.insert(0, R)`, or `returns.reverse()` after the loop.",
    sources=(
        "PyTorch examples, reinforce.py: returns.appendleft(R)",
        "Williams 1992, Simple statistical gradient-following algorithms (REINFORCE)",
    ),
    calibration=SILENT_ON_TWINS,
    runs=Runs(loop=True),
    explains=("GS601", "GS603"),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for each list."""
    for number, one in enumerate(loop.facts_of("reversed-returns")):
        yield RULE.in_loop(
            loop,
            "",
            f"`{one.name}.append({one.words[0]})` in a loop from the last reward to the first: "
            f"`{one.name}` is in reversed order, and nothing turns it round.",
            value=1.0,
            cause=str(number) if number else None,
            location=one.location,
        )
