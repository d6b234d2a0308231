"""GS868: a Q-learning target that continues after the end of an episode."""

from __future__ import annotations

from gradscope.records.loop import LoopRecord
from gradscope.rules._loop import LoopFindings
from gradscope.rules._rule import SILENT_ON_TWINS, Limits, Rule, Runs

RULE = Rule(
    code="GS868",
    name="unmasked-target",
    severity="warning",
    summary="a Q-learning target adds the next state's value after the end of an episode",
    what=(
        "Reads the text of the script. It fires if a target is a reward plus a discount times a "
        "maximum, a flag such as `done` ends episodes, and no expression computes with such a "
        "flag. It is silent if any `if`, `where`, mask or product uses one. It also fires if the "
        "discounted value is multiplied by the flag itself, and no expression inverts it."
    ),
    why=(
        "A terminal state has no value. If the target adds one, values grow to those of an "
        "episode that never ends, and the best action at the end is worth no more than others."
    ),
    fix="Multiply the next state's value by `(1 - done)`.",
    sources=(
        "Mnih et al. 2015, Human-level control, algorithm 1: y = r if the episode terminates",
        "PyTorch tutorials, reinforcement learning (DQN): non_final_mask",
    ),
    calibration=SILENT_ON_TWINS,
    runs=Runs(loop=True),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for each target."""
    for number, one in enumerate(loop.facts_of("unmasked-target")):
        yield RULE.in_loop(
            loop,
            "",
            f"the target `{one.words[0]}` adds the next state's value at the end of an "
            "episode, too: nothing masks it with the flag that ends episodes.",
            value=1.0,
            cause=str(number) if number else None,
            location=one.location,
        )
    for number, one in enumerate(loop.facts_of("inverted-end")):
        target, flag = one.words
        yield RULE.in_loop(
            loop,
            "",
            f"the target `{target}` multiplies the next state's value by `{flag}`, the flag of an "
            "episode's end: no other state gets a value from the next.",
            advice=f"Multiply by `(1 - {flag})`, as a float.",
            value=1.0,
            cause=f"inverted {number}" if number else "inverted",
            location=one.location,
        )
