"""GS830: the training ends before the learning rate has warmed up."""

from __future__ import annotations

from gradscope.records.loop import LoopOptimizer, LoopRecord, LoopScheduler
from gradscope.rules._loop import LoopFindings, held_by
from gradscope.rules._rule import CHOSEN, Limits, Rule, Runs, Threshold
from gradscope.rules._words import number, plural

RULE = Rule(
    code="GS830",
    name="unfinished-warmup",
    severity="warning",
    summary="the training ends during the warm-up: the learning rate is far below its target",
    what=(
        "Compares the run's highest learning rate with its scheduler's target, when the script "
        "has ended. It fires if the rate still rises and is below half of the target."
    ),
    why="Most steps used a small part of the chosen learning rate.",
    fix=(
        "Match the schedule to the number of `scheduler.step()` calls: warm up for fewer steps, "
        "or call it after every batch if its numbers count batches."
    ),
    sources=(
        "PyTorch, OneCycleLR: step should be called after a batch has been used for training",
        "Lightning, configure_optimizers: the interval of a scheduler is an epoch by default",
        "Hugging Face, TrainingArguments: warmup_steps",
    ),
    thresholds=(
        Threshold("share", 0.5, "share of the target, below which it fires", CHOSEN),
        Threshold("steps", 20, "steps needed to judge", CHOSEN),
    ),
    runs=Runs(loop=True, end=True),
    explains=("GS104", "GS603", "GS613", "GS605"),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for each scheduler."""
    if not loop.ended or loop.cut:
        return
    optimizers = {one.name: one for one in loop.optimizers}
    for scheduler in loop.schedulers:
        optimizer = optimizers.get(scheduler.optimizer)
        if optimizer is None or optimizer.steps < limits["steps"] or not scheduler.steps:
            continue
        target, peak = scheduler.target or 0.0, optimizer.peak
        rises = optimizer.rises and 0 < optimizer.rate >= 0.999 * peak
        if rises and peak < limits["share"] * target:
            yield RULE.in_loop(
                loop,
                scheduler.name,
                _message(optimizer, scheduler, target),
                value=peak / target,
                threshold=limits["share"],
                location=_place(optimizer, scheduler),
                parameters=held_by(optimizer, loop),
            )


def _place(optimizer: LoopOptimizer, scheduler: LoopScheduler) -> str | None:
    """Return the line with the scheduler's numbers; if it makes fewer steps than the optimizer, the
    line of its steps."""
    if 2 * scheduler.steps <= optimizer.steps:
        return scheduler.location
    return scheduler.warmup or scheduler.made or scheduler.location


def _message(optimizer: LoopOptimizer, scheduler: LoopScheduler, target: float) -> str:
    total = scheduler.settings.get("total_steps")
    kind = f" ({scheduler.kind})" if scheduler.kind != scheduler.name else ""
    of = f" of {total:,.0f}" if total else ""
    return (
        f"the learning rate of `{optimizer.name}` still rises when the training ends: it reached "
        f"{number(optimizer.peak)} of {number(target)}. `{scheduler.name}`{kind} made "
        f"{plural(scheduler.steps, 'step')}{of}, `{optimizer.name}` {optimizer.steps:,}."
    )
