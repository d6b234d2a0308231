"""GS870: a Q-learning target that uses the index of the best action."""

from __future__ import annotations

from gradscope.records.loop import LoopRecord
from gradscope.rules._loop import LoopFindings
from gradscope.rules._rule import SILENT_ON_TWINS, Limits, Rule, Runs

RULE = Rule(
    code="GS870",
    name="index-as-value",
    severity="error",
    summary="a Q-learning target uses the index of the best action, not its value",
    what=(
        "Reads the text of the script. It fires if a variable gets the index of a maximum, for "
        "example by `q.max(1)[1]` or `argmax`, and the same function adds a multiple of it to a "
        "reward."
    ),
    why=(
        "The target depends on the number of the action, not on its predicted return: "
        "actions with a high number look good."
    ),
    fix="Use the value: `q.max(1)[0]`, `q.max(1).values` or `q.amax(1)`.",
    sources=(
        "PyTorch, torch.max: a named tuple (values, indices)",
        "PyTorch tutorials, reinforcement learning (DQN): next_state_values = max(1).values",
    ),
    calibration=SILENT_ON_TWINS,
    runs=Runs(loop=True),
    explains=("GS603", "GS613"),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for each index."""
    for number, one in enumerate(loop.facts_of("index-as-value")):
        yield RULE.in_loop(
            loop,
            "",
            f"the target `{one.words[0]}` uses `{one.name} = {one.words[1]}`, "
            "the index of the best action, not its value.",
            value=1.0,
            cause=str(number) if number else None,
            location=one.location,
        )
