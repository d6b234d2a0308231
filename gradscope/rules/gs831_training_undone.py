"""GS831: a model's training is overwritten by the same old weights again and again."""

from __future__ import annotations

from gradscope.records.loop import LoopRecord
from gradscope.rules._loop import LoopFindings
from gradscope.rules._rule import CHOSEN, Limits, Rule, Runs, Threshold
from gradscope.rules._words import plural

RULE = Rule(
    code="GS831",
    name="training-undone",
    severity="error",
    summary="`load_state_dict` resets a model to the same weights while it trains",
    what=(
        "Compares the weights of a model that an optimizer trains after each `load_state_dict`. "
        "It fires if they are the same every time, though the optimizer made steps in between."
    ),
    why="Everything learned between two loads is lost.",
    fix=(
        "Load in the other direction: the target network takes the trained weights. To restart "
        "on purpose, make a new optimizer too."
    ),
    sources=(
        "PyTorch tutorials, reinforcement learning (DQN): target_net takes policy_net's weights",
        "Mnih et al. 2015, Human-level control: every C steps the target is set to the network",
    ),
    thresholds=(Threshold("loads", 3, "such loads needed to report", CHOSEN),),
    runs=Runs(loop=True),
    explains=("GS603", "GS613", "GS605", "GS835"),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for each model."""
    for model in loop.models:
        if model.undone < limits["loads"]:
            continue
        yield RULE.in_loop(
            loop,
            model.name,
            f"`load_state_dict` reset `{model.name}` to the same weights "
            f"{plural(model.undone + 1, 'time')}, and undid the steps in between.",
            advice=f"Load the weights of `{model.name}` into the other model, not the other "
            "way round.",
            value=float(model.undone),
            limit=limits.of("loads"),
            location=model.undone_at,
            model=model.name,
        )
