"""GS805: a parameter that two optimizers move."""

from __future__ import annotations

from gradscope.records.loop import LoopParameter, LoopRecord
from gradscope.rules._loop import STEPS, LoopFindings, concerned, full_names, these
from gradscope.rules._rule import Limits, Rule, Runs
from gradscope.rules._words import plural

RULE = Rule(
    code="GS805",
    name="parameter-in-two-optimizers",
    severity="warning",
    summary="two optimizers that take turns hold the same parameter",
    what=(
        "Compares the parameters of all optimizers. It fires if two hold the same parameter and "
        "step in turn. An optimizer that replaces the other, as after a warm-up, does not count."
    ),
    why=(
        "Each moves the weight by the same gradient: steps are twice as long, and neither "
        "momentum includes the other's steps."
    ),
    fix="Give each parameter to one optimizer, or make one optimizer with two groups.",
    sources=(
        "PyTorch, torch.optim: some parameters appear in more than one parameter group (an error "
        "within one optimizer; PyTorch does not compare two)",
    ),
    runs=Runs(loop=True),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for each pair of optimizers that share a parameter."""
    pairs: dict[tuple[str, ...], list[LoopParameter]] = {}
    for one in loop.parameters:
        if "held-twice" in one.facts and _take_turns(loop, one.optimizers):
            pairs.setdefault(one.optimizers, []).append(one)
    for optimizers, parameters in pairs.items():
        names = these(full_names(parameters, loop))
        made = [o.location for o in loop.optimizers if o.name in optimizers and o.location]
        yield RULE.in_loop(
            loop,
            optimizers[-1],
            f"`{'` and `'.join(optimizers)}` both hold {plural(len(parameters), 'parameter')}: "
            f"{names}. Each step of either moves them.",
            value=float(len(parameters)),
            location=made[-1] if made else None,
            parameters=concerned(parameters, loop),
        )


def _take_turns(loop: LoopRecord, optimizers: tuple[str, ...]) -> bool:
    """Return True if each optimizer steps before another has made its last step."""
    if len(set(optimizers)) < 2:
        return False
    firsts, lasts, counts = [], [], []
    for name in optimizers:
        rounds = list(loop.rounds_of(name))
        if not rounds:
            return False
        firsts.append(min(one.first for one in rounds))
        lasts.append(max(one.last for one in rounds))
        counts.append(sum(one.count for one in rounds))
    return max(firsts) < min(lasts) and (loop.ended or min(counts) >= STEPS)
