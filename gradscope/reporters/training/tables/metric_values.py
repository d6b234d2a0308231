"""Steps → step metrics: the course of each figure that every step has."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gradscope.records.history import RunHistory
from gradscope.records.training import TrainingStep
from gradscope.reporters.training.sentences.losses import backwards_over
from gradscope.typeset.numbers import count, number, plural, share
from gradscope.typeset.text import plain


@dataclass(frozen=True, slots=True)
class Metric:
    """One step metric: its value at each step, and the steps where it was NaN or Inf.

    One without steps is the heading of those that follow. ``note`` says what the values are.
    """

    label: str
    steps: tuple[int, ...] = ()
    values: tuple[float | None, ...] = ()
    lost: tuple[int, ...] = ()
    note: str = ""

    @property
    def heading(self) -> bool:
        """Whether it is only a heading of others."""
        return not self.steps

    def extreme(self, which: Callable[..., Any]) -> tuple[float, int] | None:
        """The lowest or the highest finite value, ``which`` being min or max, and its step."""
        known = (
            (value, step)
            for value, step in zip(self.values, self.steps, strict=True)
            if value is not None and math.isfinite(value)
        )
        found: tuple[float, int] | None = which(known, default=None, key=lambda pair: pair[0])
        return found


LOSS = "loss"
_Values = tuple[float | None, ...]


def metrics(history: RunHistory) -> list[Metric]:
    """Every metric that was measured; of several optimizers one after the other."""
    by_optimizer: dict[str, list[TrainingStep]] = {}
    for step in history.steps:
        by_optimizer.setdefault(step.optimizer, []).append(step)
    of_all = _measured(history.steps, _of_all(history.steps))
    if len(by_optimizer) < 2:
        return [*_measured(history.steps, _of_optimizer(history.steps)), *of_all]
    found: list[Metric] = []
    for optimizer, steps in by_optimizer.items():
        found.append(Metric(plain(optimizer) or "without an optimizer"))
        found += _measured(steps, _of_optimizer(steps))
    return [*found, Metric("all together"), *of_all]


def _measured(
    steps: Sequence[TrainingStep], series: Iterable[tuple[str, _Values, Collection[int]]]
) -> list[Metric]:
    """A metric for each series with values; lost steps have no value."""
    numbers = tuple(step.step for step in steps)
    found = []
    for label, values, without in series:
        pairs = zip(numbers, values, strict=True)
        lost = {*without, *(n for n, x in pairs if x is not None and not math.isfinite(x))}
        if lost or any(x is not None for x in values):
            note = backwards_over(steps) if label == LOSS else ""
            found.append(Metric(label, numbers, values, tuple(sorted(lost)), note))
    return found


def _of_optimizer(
    steps: Sequence[TrainingStep],
) -> Iterator[tuple[str, _Values, Collection[int]]]:
    bad = [step for step in steps if step.nonfinite]
    lost = [step.step for step in bad if None in step.summed_losses]
    yield LOSS, tuple(step.loss for step in steps), lost
    lost = [step.step for step in bad if step.gradient_norm is None]
    yield "gradient norm", tuple(step.gradient_norm for step in steps), lost
    if clipped(steps):
        lost = [step.step for step in bad if step.clipped_norm is None]
        yield "after clipping", tuple(step.clipped_norm for step in steps), lost
    groups = range(max((len(step.learning_rates) for step in steps), default=0))
    rates = [tuple(_rate(step, group) for step in steps) for group in groups]
    if len(set(rates)) == 1:  # all groups alike
        rates = rates[:1]
    for group, of_group in enumerate(rates):
        yield f"learning rate {group}" if len(rates) > 1 else "learning rate", of_group, ()


def _of_all(steps: Sequence[TrainingStep]) -> Iterator[tuple[str, _Values, Collection[int]]]:
    yield "loss scale", tuple(step.loss_scale for step in steps), ()
    yield "seconds a step", tuple(step.seconds for step in steps), ()


def _rate(step: TrainingStep, group: int) -> float | None:
    return step.learning_rates[group] if group < len(step.learning_rates) else None


def clipped(steps: Sequence[TrainingStep]) -> list[float]:
    """The norms after clipping, of the steps in which clipping made the norm smaller."""
    # A norm that was taken twice may differ in its last digits.
    return [after for before, after in _both_norms(steps) if after < before * (1 - 1e-5)]


def _both_norms(steps: Sequence[TrainingStep]) -> list[tuple[float, float]]:
    """The norms before and after clipping, of the steps in which both were read."""
    return [
        (step.gradient_norm, step.clipped_norm)
        for step in steps
        if step.gradient_norm is not None and step.clipped_norm is not None
    ]


def clipping(history: RunHistory) -> str | None:
    """How many steps were clipped, and to what; None where none was."""
    norms, read = clipped(history.steps), len(_both_norms(history.steps))
    if not norms:
        return None
    bounds = " to ".join(dict.fromkeys(map(number, (min(norms), max(norms)))))
    whose = " whose norm was read" if read < len(history.steps) else ""
    of_all = f"{count(len(norms))} of {plural(read, 'step')}{whose} ({share(len(norms), read)})"
    return f"clipped: {of_all}, to a gradient norm of {bounds}"
