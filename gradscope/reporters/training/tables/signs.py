"""Steps → vital signs: the course of each figure that every step has."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from gradscope.records.history import RunHistory
from gradscope.records.training import TrainingStep
from gradscope.typeset.curves import Point
from gradscope.typeset.numbers import count, number, plural, share
from gradscope.typeset.text import plain


@dataclass(frozen=True, slots=True)
class Sign:
    """One vital sign: its points, those that are finite numbers, and the steps where it was not.

    One without points is the heading of those that follow.
    """

    label: str
    points: tuple[Point, ...] = ()
    known: tuple[tuple[float, int], ...] = ()
    lost: tuple[int, ...] = ()

    @property
    def heading(self) -> bool:
        """Whether it only stands above others."""
        return not self.points


def signs(history: RunHistory) -> list[Sign]:
    """Every sign that was measured; of several optimizers one after the other."""
    by_optimizer: dict[str, list[TrainingStep]] = {}
    for step in history.steps:
        by_optimizer.setdefault(step.optimizer, []).append(step)
    of_all = _measured(_of_all(history.steps))
    if len(by_optimizer) < 2:
        return [*_measured(_of_optimizer(history.steps)), *of_all]
    found: list[Sign] = []
    for optimizer, steps in by_optimizer.items():
        found.append(Sign(plain(optimizer) or "without an optimizer"))
        found += _measured(_of_optimizer(steps))
    return [*found, Sign("all together"), *of_all]


def _measured(series: Iterable[tuple[str, tuple[Point, ...]]]) -> list[Sign]:
    """A sign for each series that holds anything."""
    found = []
    for label, points in series:
        pairs = ((p.value, p.step) for p in points)
        known = tuple((x, step) for x, step in pairs if x is not None and math.isfinite(x))
        lost = tuple(p.step for p in points if lost_at(p))
        if known or lost:
            found.append(Sign(label, points, known, lost))
    return found


def lost_at(point: Point) -> bool:
    """Whether there is a NaN or an infinity."""
    return point.lost or (point.value is not None and not math.isfinite(point.value))


def _of_optimizer(steps: Sequence[TrainingStep]) -> Iterator[tuple[str, tuple[Point, ...]]]:
    def points(value: Callable[[TrainingStep], float | None]) -> Iterator[Point]:
        for step in steps:
            x = value(step)
            yield Point(step.step, x, x is None and step.nonfinite is not None)

    of_loss = ((s.step, s.loss, None in s.losses and bool(s.nonfinite)) for s in steps)
    yield "loss", tuple(Point(*loss) for loss in of_loss)
    yield "gradient norm", tuple(points(lambda step: step.gradient_norm))
    if clipped(steps):
        yield "after clipping", tuple(points(lambda step: step.clipped_norm))
    groups = range(max((len(step.learning_rates) for step in steps), default=0))
    rates = [tuple(Point(step.step, _rate(step, group)) for step in steps) for group in groups]
    if len(set(rates)) == 1:  # all groups alike
        rates = rates[:1]
    for group, of_group in enumerate(rates):
        yield f"learning rate {group}" if len(rates) > 1 else "learning rate", of_group


def _of_all(steps: Sequence[TrainingStep]) -> Iterator[tuple[str, tuple[Point, ...]]]:
    yield "loss scale", tuple(Point(step.step, step.loss_scale) for step in steps)
    yield "seconds a step", tuple(Point(step.step, step.seconds) for step in steps)


def _rate(step: TrainingStep, group: int) -> float | None:
    return step.learning_rates[group] if group < len(step.learning_rates) else None


def clipped(steps: Sequence[TrainingStep]) -> list[TrainingStep]:
    """The steps of which the optimizer got smaller gradients than backward left."""
    return [
        step
        for step in steps
        if step.clipped_norm is not None
        and step.gradient_norm is not None
        # A norm that was taken twice may differ in its last digits.
        and step.clipped_norm < step.gradient_norm * (1 - 1e-5)
    ]


def clipping(history: RunHistory) -> str | None:
    """How many steps were clipped, and to what; None where none was."""
    steps = clipped(history.steps)
    if not steps:
        return None
    norms = [step.clipped_norm or 0.0 for step in steps]
    bounds = number(max(norms))
    if number(min(norms)) != bounds:
        bounds = f"{number(min(norms))} to {bounds}"
    total = len(history.steps)
    of_all = f"{plural(len(steps), 'step')} of {count(total)} ({share(len(steps), total)})"
    return f"clipped: the gradients of {of_all}, to a norm of {bounds}"
