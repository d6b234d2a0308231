"""GS831: a model's training is overwritten, by the same old weights or by new random ones."""

from __future__ import annotations

from gradscope.records.loop import LoopRecord
from gradscope.rules._loop import LoopFindings
from gradscope.rules._rule import CHOSEN, Limits, Rule, Runs, Threshold
from gradscope.rules._words import plural

RULE = Rule(
    code="GS831",
    name="training-undone",
    severity="error",
    summary="a model is reset to old or to random weights again and again while it trains",
    what=(
        "Compares the weights of a model that an optimizer trains after each `load_state_dict`. "
        "It fires if they are the same every time, though the optimizer made steps in between. It "
        "also fires if `torch.nn.init`, as in `reset_parameters`, draws all weights of an "
        "optimizer again between its steps."
    ),
    why="Everything learned before is lost each time.",
    fix=(
        "Load in the other direction: the target network takes the trained weights. Initialise "
        "weights once, before the loop. To restart on purpose, make a new optimizer too."
    ),
    sources=(
        "PyTorch tutorials, reinforcement learning (DQN): target_net takes policy_net's weights",
        "Mnih et al. 2015, Human-level control: every C steps the target is set to the network",
    ),
    thresholds=(Threshold("loads", 3, "such loads or draws needed to report", CHOSEN),),
    runs=Runs(loop=True),
    explains=("GS603", "GS613", "GS605", "GS835"),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for each model, and for each optimizer whose weights are drawn again."""
    for drawn in loop.facts_of("redrawn"):
        if drawn.count < limits["loads"]:
            continue
        weights, steps = map(int, drawn.figures)
        yield RULE.in_loop(
            loop,
            drawn.name,
            f"{'the weight' if weights == 1 else f'the {weights} weights'} of `{drawn.name}` "
            f"{'was' if weights == 1 else 'were'} drawn at random again "
            f"{plural(drawn.count, 'time')} in {plural(steps, 'step')}: what the steps before "
            "had learned was lost each time.",
            advice="Initialise the weights once, before the loop.",
            value=float(drawn.count),
            limit=limits.of("loads"),
            location=drawn.location,
        )
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
