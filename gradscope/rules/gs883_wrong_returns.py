"""GS883: discounted returns in the wrong order, or of one reward each."""

from __future__ import annotations

from gradscope.records.loop import LoopRecord
from gradscope.rules._loop import LoopFindings
from gradscope.rules._rule import SILENT_ON_TWINS, Limits, Rule, Runs

RULE = Rule(
    code="GS883",
    name="wrong-returns",
    severity="warning",
    summary="discounted returns stay in reversed order, or have one reward each",
    what=(
        "Reads the text of the script. It fires if a loop over `reversed(rewards)` or "
        "`rewards[::-1]` computes `R = r + gamma * R` and appends it to a list, and nothing in "
        "that function turns the list round or returns it. It also fires if the loop sets `R` to "
        "a number before each `R = r + gamma * R`."
    ),
    why=(
        "The returns are multiplied with log-probabilities from the first step to the last: each "
        "action gets the return of another, or no credit for the rewards after it."
    ),
    fix=(
        "Use `returns.insert(0, R)`, or `returns.reverse()` after the loop. Set `R` to 0 once, "
        "before the loop."
    ),
    sources=(
        "PyTorch examples, reinforce.py: returns.appendleft(R)",
        "Williams 1992, Simple statistical gradient-following algorithms (REINFORCE)",
    ),
    calibration=SILENT_ON_TWINS,
    runs=Runs(loop=True),
    explains=("GS601", "GS603"),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for each list, and for each sum that begins anew."""
    for number, one in enumerate(loop.facts_of("reset-return")):
        yield RULE.in_loop(
            loop,
            "",
            f"`{one.words[0]}` in the loop that computes `{one.words[1]}`: `{one.name}` begins "
            "anew for each reward, so no action gets credit for the rewards after it.",
            advice=f"Set `{one.name}` once, before the loop.",
            value=1.0,
            cause=f"reset {number}",
            location=one.location,
        )
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
