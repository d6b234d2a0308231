"""The step metrics of a run as a table: each over all steps, first, last, lowest and highest."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gradscope.records.training import RunHistory, TrainingStep
from gradscope.reporters.run.summary import backwards_over
from gradscope.typeset.numbers import NOT_THERE, count, number, plural, share
from gradscope.typeset.sparklines import NOT_FINITE, curve
from gradscope.typeset.tables import KEEP, Cell, Heading, Table, plan
from gradscope.typeset.text import plain

_HEIGHTS = (
    "from each row's lowest value to its highest; log scale if the highest is over 100 times the "
    "lowest"
)


def curve_legend(curves: Sequence[str], over: str, *, explained: bool = False) -> Iterator[str]:
    """Yield the legend of curves: their x axis, their heights, and the symbols that occur.

    ``explained``: the legend of a table above explains the heights.
    """
    if over and any(one.strip() for one in curves):
        yield f"curves: {over}" + ("" if explained else f", {_HEIGHTS}")
    if any(NOT_FINITE in one for one in curves):
        yield f"{NOT_FINITE}: NaN or Inf; nonfinite: the number of steps with one, and the first"


def losses(steps: Sequence[int]) -> str:
    """Return the number of NaN or Inf steps and the first: ``1 at 89``, ``3 from 89``."""
    if not steps:
        return ""
    return f"{count(len(steps))} {'at' if len(steps) == 1 else 'from'} {count(steps[0])}"


def span(history: RunHistory) -> tuple[int, int]:
    """The first and the last known step."""
    if history.steps:
        return history.steps[0].step, history.steps[-1].step
    return (history.sampled[0], history.sampled[-1]) if history.sampled else (1, 1)


@dataclass(frozen=True, slots=True)
class Metric:
    """One step metric: its value at each step, and the steps where it was NaN or Inf.

    A metric without steps is the heading of those that follow. ``note`` explains the values.
    """

    label: str
    steps: tuple[int, ...] = ()
    values: tuple[float | None, ...] = ()
    lost: tuple[int, ...] = ()
    note: str = ""

    @property
    def heading(self) -> bool:
        """True if the metric only heads others."""
        return not self.steps

    def extreme(self, which: Callable[..., Any]) -> tuple[float, int] | None:
        """Return the lowest or the highest finite value, by ``which`` (min or max), and its
        step."""
        known = (
            (value, step)
            for value, step in zip(self.values, self.steps, strict=True)
            if value is not None and math.isfinite(value)
        )
        found: tuple[float, int] | None = which(known, default=None, key=lambda pair: pair[0])
        return found


LOSS, UPDATE = "loss", "update rms"
_Values = tuple[float | None, ...]


def metrics(history: RunHistory) -> list[Metric]:
    """Return every measured metric; with several optimizers, one optimizer after the other."""
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
    """Return a metric for each series with values; steps with NaN or Inf have no value."""
    numbers = tuple(step.step for step in steps)
    found = []
    for label, values, without in series:
        pairs = zip(numbers, values, strict=True)
        lost = {*without, *(n for n, x in pairs if x is not None and not math.isfinite(x))}
        if lost or any(x is not None for x in values):
            note = ""
            if label == LOSS:
                note = backwards_over(steps)
            elif label == UPDATE and _only_sampled(steps):
                note = "of sampled steps: the optimizer's state does not contain its update"
            found.append(Metric(label, numbers, values, tuple(sorted(lost)), note))
    return found


def _only_sampled(steps: Sequence[TrainingStep]) -> bool:
    """Return True if updates are known for sampled steps only."""
    others = [step for step in steps if not step.sampled and step.gradient_norm is not None]
    return bool(others) and all(step.update_rms is None for step in others)


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
    yield UPDATE, tuple(step.update_rms for step in steps), ()
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
    """Return the norms after clipping, for the steps in which clipping made the norm smaller."""
    # A norm that was taken twice may differ in its last digits.
    return [after for before, after in _both_norms(steps) if after < before * (1 - 1e-5)]


def _both_norms(steps: Sequence[TrainingStep]) -> list[tuple[float, float]]:
    """Return the norms before and after clipping, for the steps in which both were read."""
    return [
        (step.gradient_norm, step.clipped_norm)
        for step in steps
        if step.gradient_norm is not None and step.clipped_norm is not None
    ]


def clipping(history: RunHistory) -> str | None:
    """Return the number of clipped steps and the norm they were clipped to; None without any."""
    norms, read = clipped(history.steps), len(_both_norms(history.steps))
    if not norms:
        return None
    bounds = " to ".join(dict.fromkeys(map(number, (min(norms), max(norms)))))
    whose = " whose norm was read" if read < len(history.steps) else ""
    of_all = f"{count(len(norms))} of {plural(read, 'step')}{whose} ({share(len(norms), read)})"
    return f"clipped: {of_all}, to a gradient norm of {bounds}"


#: The widths that the curves may have where all columns fit, without the places of the extremes,
#: and in a pipe.
_WIDTHS, _NARROW, _PIPED = (64, 56, 48, 40, 32), (40, 32, 24, 20, 16, 12), 48
_HEADINGS = (
    Heading("metric", right=False, prose=True),
    Heading("first", keep=90),
    Heading("last", keep=KEEP),
    Heading("min", keep=70),
    Heading("min_at", keep=50, beside="min"),
    Heading("max", keep=80),
    Heading("max_at", keep=60, beside="max"),
    Heading("nonfinite", keep=KEEP),
    Heading("curve", right=False, keep=KEEP),
)
#: Metrics that one step does not have.
_COURSE = {"first", "min", "min_at", "max", "max_at", "curve"}
_PLACES = {"min_at", "max_at"}


def table(history: RunHistory, width: int | None) -> Table | None:
    """Return the table of metrics at a width: the curves take the space that the figures leave."""
    rows = metrics(history)
    if not rows:
        return None
    figures = [_figures(metric) for metric in rows]
    for room, hideable in _layouts(width):
        blank = _table(rows, figures, ["▁" * room for _ in rows], history)
        if {*plan(blank, width).hidden} <= hideable:
            break
    first, last = span(history)
    curves = [
        curve(metric.steps, metric.values, metric.lost, first=first, last=last, width=room)
        for metric in rows
    ]
    return _table(rows, figures, curves, history)


def _layouts(width: int | None) -> list[tuple[int, set[str]]]:
    """Return the curves' widths, and the columns to hide for each: the best first, the last as a
    fallback.
    """
    if width is None:
        return [(_PIPED, set())]
    wide = [(room, set[str]()) for room in _WIDTHS]
    return [*wide, *((room, _PLACES) for room in _NARROW)]


def _figures(metric: Metric) -> list[str]:
    if metric.heading:
        return [""] * (len(_HEADINGS) - 2)
    figures = [_text(metric, 0), _text(metric, -1)]
    for which in (min, max):
        found = metric.extreme(which)
        figures += [number(found[0]), count(found[1])] if found else [NOT_THERE, ""]
    return [*figures, losses(metric.lost)]


def _text(metric: Metric, i: int) -> str:
    lost = metric.values[i] is None and metric.steps[i] in metric.lost
    return NOT_FINITE if lost else number(metric.values[i])


def _table(
    of: Sequence[Metric],
    figures: Sequence[Sequence[str]],
    curves: Sequence[str],
    history: RunHistory,
) -> Table:
    several = len(history.steps) > 1
    left_out = set() if any(metric.lost for metric in of) else {"nonfinite"}
    left_out |= set() if several else _COURSE
    shown = [i for i, heading in enumerate(_HEADINGS) if heading.key not in left_out]
    indent = "  " if any(metric.heading for metric in of) else ""
    rows = []
    for metric, texts, drawn in zip(of, figures, curves, strict=True):
        *known, gone = texts
        cells = [
            Cell(metric.label if metric.heading else indent + metric.label),
            *(Cell(text, "bad" if text == NOT_FINITE else "") for text in known),
            Cell(gone, "bad" if gone else ""),
            Cell("" if metric.heading else drawn, "bad" if NOT_FINITE in drawn else ""),
        ]
        rows.append(tuple(cells[i] for i in shown))
    remarks = [*_notes(of), *filter(None, [clipping(history)])]
    first, last = span(history)
    over = f"steps {count(first)} to {count(last)}" if several else ""
    return Table(
        "step metrics",
        tuple(_HEADINGS[i] for i in shown),
        tuple(rows),
        _caption(history),
        (*remarks, *curve_legend(curves, over)),
    )


def _notes(of: Sequence[Metric]) -> Iterator[str]:
    """Yield notes on the values of metrics: ``loss: sum of 4 backwards``."""
    whose = ""
    for metric in of:
        if metric.heading:
            whose = f" of {metric.label}"
        elif metric.note:
            yield f"{metric.label}{whose}: {metric.note}"


def _caption(history: RunHistory) -> str:
    steps = count(len(history.steps))
    if history.thinned:
        return f"of the {steps} steps kept of {count(history.last_step)}"
    return "of the one step" if len(history.steps) == 1 else f"of all {steps} steps"
