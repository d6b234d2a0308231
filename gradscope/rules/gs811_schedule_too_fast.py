"""GS811: a schedule in epochs that makes a step after every batch."""

from __future__ import annotations

from gradscope.records.loop import LoopOptimizer, LoopRecord, LoopScheduler
from gradscope.rules._course import fell
from gradscope.rules._loop import LoopFindings, held_by
from gradscope.rules._rule import CHOSEN, Limits, Rule, Runs, Threshold
from gradscope.rules._words import number, plural

RULE = Rule(
    code="GS811",
    name="schedule-too-fast",
    severity="warning",
    summary="a scheduler that steps after every batch ends the training early",
    what=(
        "Follows the learning rate and the steps of each scheduler. It fires if the rate fell "
        "below a hundredth of its highest and stayed there for a good part of the run, and a "
        "scheduler stepped after nearly every batch. It also fires if CosineAnnealingLR steps "
        "after every batch and passes its T_max again and again, if T_max is not a number of "
        "batches in an epoch: the rate then rises again. And it fires if MultiStepLR steps after "
        "every batch and its milestones fit the number of epochs, but all pass in the first few "
        "steps; that is an info if the loss falls by half."
    ),
    why=(
        "`StepLR`, `MultiStepLR` and `ExponentialLR` count calls of their `step`. If their "
        "numbers are meant as epochs, the schedule ends after as many batches, and the model "
        "learns nothing from then on."
    ),
    fix="Call `scheduler.step()` once for each epoch, or give its numbers in steps.",
    sources=(
        "PyTorch, torch.optim.lr_scheduler: how to adjust learning rate (scheduler.step() in the "
        "loop over epochs)",
    ),
    thresholds=(
        Threshold(
            "rest", 0.3, "share of steps after the fall of the rate, above which it fires", CHOSEN
        ),
        Threshold("turns", 3, "multiples of T_max, at or above which it fires", CHOSEN),
        Threshold(
            "early", 0.1, "share of steps before the last milestone, below which it fires", CHOSEN
        ),
        Threshold("left", 0.5, "share of the first loss left, below which it is an info", CHOSEN),
        Threshold("steps", 10, "steps after the fall of the rate needed to judge", CHOSEN),
    ),
    runs=Runs(loop=True),
    explains=("GS104", "GS603", "GS613", "GS605", "GS608"),
)


#: The share of a run's epochs before the last milestone that is usual at the least.
_LATE = 0.3


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for each optimizer."""
    yield from _turning(loop, limits)
    gone = set[str]()
    for optimizer in loop.optimizers:
        after = optimizer.steps - optimizer.gone + 1 if optimizer.gone else 0
        if after < limits["steps"] or after < limits["rest"] * optimizer.steps:
            continue
        for scheduler in loop.schedulers:
            if scheduler.optimizer != optimizer.name or scheduler.steps < 0.9 * optimizer.steps - 1:
                continue
            gone.add(scheduler.name)
            yield RULE.in_loop(
                loop,
                scheduler.name,
                _message(loop, optimizer, scheduler),
                advice=f"Call `{scheduler.name}.step()` once for each epoch, or give its "
                "numbers in steps.",
                value=optimizer.rate / optimizer.peak if optimizer.peak else 0.0,
                threshold=0.01,
                location=scheduler.location,
                first=optimizer.gone,
                parameters=held_by(optimizer, loop),
            )

    yield from (one for one in _early(loop, limits) if one.name not in gone)


def _early(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield schedules with milestones in epochs that pass in as many batches."""
    for optimizer in loop.optimizers:
        for scheduler in loop.schedulers:
            if scheduler.optimizer != optimizer.name or not scheduler.milestones:
                continue
            if scheduler.steps < 0.9 * optimizer.steps - 1 or not loop.loader:
                continue
            last, epochs = scheduler.milestones[-1], optimizer.steps / loop.loader
            after = optimizer.steps - last
            # As epochs, they must lie where a schedule has them; as steps, where none has them.
            if not _LATE * epochs <= last <= epochs or last >= limits["early"] * optimizer.steps:
                continue
            if after < limits["steps"] or optimizer.rate > 0.5 * optimizer.peak:
                continue
            listed = ", ".join(f"{one}" for one in scheduler.milestones)
            yield RULE.in_loop(
                loop,
                scheduler.name,
                f"the learning rate of `{optimizer.name}` falls from {number(optimizer.peak)} to "
                f"{number(optimizer.rate)} within {plural(last, 'step')} of {optimizer.steps:,}: "
                f"`{scheduler.name}`, {scheduler.kind}(milestones=[{listed}]), makes a step after "
                f"every batch, {plural(loop.loader, 'batch', 'batches')} an epoch.",
                severity="info" if fell(loop.course, limits["left"]) else None,
                advice=f"Give the milestones in steps, each times {loop.loader}, or call "
                f"`{scheduler.name}.step()` once for each epoch.",
                value=last / optimizer.steps,
                limit=limits.of("early"),
                cause="early",
                location=scheduler.location,
                first=scheduler.milestones[0],
                parameters=held_by(optimizer, loop),
            )


def _turning(loop: LoopRecord, limits: Limits) -> LoopFindings:
    for optimizer in loop.optimizers:
        for scheduler in loop.schedulers:
            half = scheduler.settings.get("T_max", 0.0)
            if scheduler.kind != "CosineAnnealingLR" or scheduler.optimizer != optimizer.name:
                continue
            if scheduler.steps < 0.9 * optimizer.steps - 1 or half < 2:
                continue
            cycles = loop.loader and half % loop.loader == 0  # one for each epoch, or several
            if cycles or scheduler.steps < limits["turns"] * half:
                continue
            yield RULE.in_loop(
                loop,
                scheduler.name,
                f"`{scheduler.name}`, CosineAnnealingLR(T_max={half:.0f}), has made "
                f"{plural(scheduler.steps, 'step')}, one after every batch: the learning rate "
                f"reaches its end after {half:.0f} of them, and then rises and falls again.",
                advice=f"Call `{scheduler.name}.step()` once for each epoch, or give T_max in "
                "steps; for restarts on purpose use CosineAnnealingWarmRestarts.",
                value=scheduler.steps / half,
                limit=limits.of("turns"),
                cause="turns",
                location=scheduler.location,
                parameters=held_by(optimizer, loop),
            )


def _message(loop: LoopRecord, optimizer: LoopOptimizer, scheduler: LoopScheduler) -> str:
    words = [f"{key}={number(value)}" for key, value in list(scheduler.settings.items())[:2]]
    made = f"{scheduler.kind}({', '.join(words)})"
    batches = f", {plural(loop.loader, 'batch', 'batches')} an epoch" if loop.loader else ""
    return (
        f"the learning rate of `{optimizer.name}` falls below 1 % of its highest "
        f"({number(optimizer.peak)}) at step {optimizer.gone:,} of {optimizer.steps:,} and is now "
        f"{number(optimizer.rate)}: `{scheduler.name}`, {made}, makes a step after every "
        f"batch{batches}."
    )
