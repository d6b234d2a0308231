"""The step metrics of a run as a table: each over all steps, first, last, lowest and highest; and
the charts of a run over its steps: step metrics with events, and layers as maps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gradscope.charts.maps import PLACES, Map
from gradscope.charts.panels import NOT_FINITE as LOST
from gradscope.charts.panels import Curve, Panel, Point, Stretch, point
from gradscope.records.tensors import MEASURES
from gradscope.records.training import (
    Course,
    LayerSeries,
    RunHistory,
    TrainingFinding,
    TrainingStep,
    steps_with,
)
from gradscope.records.transformer import TransformerSeries
from gradscope.reporters.header import TONES, label
from gradscope.reporters.header import stretches as stretches_of
from gradscope.reporters.run.summary import backwards_over
from gradscope.reporters.tables.transformer import PARTS
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
    """Return the first and the last known step."""
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
    for heading, values, without in series:
        pairs = zip(numbers, values, strict=True)
        lost = {*without, *(n for n, x in pairs if x is not None and not math.isfinite(x))}
        if lost or any(x is not None for x in values):
            note = ""
            if heading == LOSS:
                note = backwards_over(steps)
            elif heading == UPDATE and _only_sampled(steps):
                note = "of sampled steps: the optimizer's state does not contain its update"
            found.append(Metric(heading, numbers, values, tuple(sorted(lost)), note))
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
    """Return the number of clipped steps and their norm after it; None if there is none."""
    norms, read = clipped(history.steps), len(_both_norms(history.steps))
    if not norms:
        return None
    bounds = " to ".join(dict.fromkeys(map(number, (min(norms), max(norms)))))
    whose = " whose norm was read" if read < len(history.steps) else ""
    of_all = f"{count(len(norms))} of {plural(read, 'step')}{whose} ({share(len(norms), read)})"
    return f"clipped: {of_all}, to a gradient norm of {bounds}"


#: Possible widths of the curves: if all columns fit, without the steps of the extremes, and in a
#: pipe.
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


#: Number of findings and events shown on a time line.
_MOST = 60
#: A metric that is drawn with the one before it.
_BESIDE = "after clipping"
#: For each map: its title, the meaning of its values, the kind of series, and the measure.
_MAPS = (
    ("gradient norm", "norm of the parameter's gradient", "parameters", "grad_norm"),
    ("update ratio", "‖Δ weight‖ / ‖weight‖", "parameters", "update_ratio"),
    ("update rms", "root mean square of Δ weight", "parameters", "update_rms"),
    ("weight decay", "share of weight decay in the update", "parameters", "decay_share"),
    ("direction", "cosine of Δ weight and gradient", "parameters", "cosine"),
    ("momentum", "norm of the first moment", "parameters", "m_norm"),
    ("second moment", "norm of the second moment", "parameters", "v_norm"),
    ("activation scale", "standard deviation of the output", "calls", "out_std"),
    ("zeros", "share of the output that is exactly zero", "calls", "out_zeros"),
    ("dead units", "share without a gradient in the full batch", "parameters", "zeros"),
)
_SHARES = ("out_zeros", "zeros", "decay_share")
#: The same for maps of heads and experts.
_PART_MAPS = (
    ("attention logits", "largest logit of each head", "attention", "logit_max"),
    ("attention evenness", "entropy ÷ ln(visible keys) of each head", "attention", "evenness"),
    ("expert load", "share of the assignments", "experts", "share"),
)
#: A map is computed from at most this many steps: four for each of its columns.
_MOST_PLACES = 4 * PLACES


def panels(history: RunHistory) -> tuple[Panel, ...]:
    """Return a chart of each step metric over all steps."""
    found: list[Panel] = []
    heading = ""
    happened = stretches(history)
    for metric in metrics(history):
        if metric.heading:
            heading = f"{metric.label}: "
        elif metric.label == _BESIDE and found:
            before = found[-1]
            found[-1] = replace(before, curves=(*before.curves, _curve(metric)))
        else:
            title = heading + metric.label
            found.append(Panel(title, "step", metric.note, (_curve(metric),), stretches=happened))
    return tuple(panel for panel in found if panel.has_points)


def together(a: RunHistory, b: RunHistory) -> tuple[Panel, ...]:
    """Return the charts of the step metrics that both runs have, each with both curves."""
    theirs = {panel.title: panel for panel in panels(b)}
    found = []
    for panel in panels(a):
        if panel.title in theirs:
            curves_of = (("A", panel.curves), ("B", theirs[panel.title].curves))
            numbered = [(i, run, one) for run, each in curves_of for i, one in enumerate(each)]
            # A has the first colour and B the second, of every metric.
            pairs = [(run, one) for _, run, one in sorted(numbered, key=lambda one: one[:2])]
            several = len(pairs) > 2
            curves = [
                replace(one, name=f"{run} {one.name}" if several else run) for run, one in pairs
            ]
            found.append(replace(panel, curves=tuple(curves), stretches=()))
    return tuple(found)


def maps_together(a: RunHistory, b: RunHistory) -> tuple[Map, ...]:
    """Return the maps of the layers that both runs have, side by side."""
    theirs = {one.title: one for one in maps(b)}
    found: list[Map] = []
    for one in maps(a):
        other = theirs.get(one.title)
        if other is None:
            continue
        rows = [dict(zip(each.names, each.values, strict=True)) for each in (one, other)]
        names = tuple(name for name in one.names if name in rows[1])
        ours, others = (tuple(by_name[name] for name in names) for by_name in rows)
        if names:
            pair = (("A", one, ours, others), ("B", other, others, ours))
            found += [
                replace(m, title=f"{run}: {m.title}", names=names, values=values, beside=beside)
                for run, m, values, beside in pair
            ]
    return tuple(found)


def stretches(history: RunHistory) -> tuple[Stretch, ...]:
    """Return the step ranges of findings and events, for the charts."""
    found = [
        Stretch(first, last, _what(one), TONES.get(one.finding.severity, ""))
        for one in history.findings
        for first, last in one.steps
    ]
    for event in history.events:
        words = f"step {count(event.step)}: {plain(event.message) or plain(event.kind)}"
        found.append(Stretch(event.step, event.step, words))
    return tuple(found[:_MOST])


def _what(one: TrainingFinding) -> str:
    finding = one.finding
    return f"{plain(finding.code)} {label(finding.name, finding.call)}: {stretches_of(one.steps)}"


def _curve(metric: Metric) -> Curve:
    lost = set(metric.lost)
    points = (_point(x, y, x in lost) for x, y in zip(metric.steps, metric.values, strict=True))
    return Curve(metric.label, tuple(points))


def _point(step: int, value: float | None, lost: bool) -> Point:
    if value is None:
        return Point(step, None, mark=LOST if lost else "", name=f"step {step}")
    return point(step, [value], f"step {step}", lost=lost)


def maps(history: RunHistory) -> Iterator[Map]:
    """Yield maps of layers over the steps with a measure; a single step gives no map."""
    for title, y, which, measure in _MAPS:
        series: Sequence[LayerSeries] = getattr(history, which)
        if measure == "zeros":  # one number of the gradient for each unit: a bias, or of a norm
            series = [one for one in series if len(one.shape) == 1]
        courses = [(one, one.course(measure)) for one in series]
        if measure == "decay_share" and not any(any(course.values) for _, course in courses):
            continue  # no weight decay
        known = [pair for pair in courses if any(x is not None for x in pair[1].values)]
        places = _places(measure, known)
        if len(places) < 2:
            continue
        names = tuple(label(one.name, one.call) for one, _ in known)
        rows = tuple(_row(course, places) for _, course in known)
        read = any(one.norms is not None for one, _ in known) and measure in MEASURES
        x = "steps whose gradients were read" if read else "sampled steps"
        yield Map(
            *(title, y, x, names, tuple(places), rows, measure in _SHARES),
            cosine=measure == "cosine",
        )
    yield from _part_maps(history)


def _part_maps(history: RunHistory) -> Iterator[Map]:
    """Yield maps of heads and experts over the sampled steps."""
    for title, y, kind, measure in _PART_MAPS:
        series: Sequence[TransformerSeries] = getattr(history, kind)
        places = sorted({step for one in series for step in one.steps})
        if len(places) < 2:
            continue
        rows: dict[str, tuple[float | None, ...]] = {}
        for one in series:
            known = dict(zip(one.steps, one.values[measure], strict=True))
            several = {step: x for step, x in known.items() if isinstance(x, tuple)}
            part = f" part {one.part}" if one.part else ""
            for i in range(max(map(len, several.values()), default=0)):
                name = f"{label(one.name, one.call)}{part} {PARTS[kind]} {i}"
                rows[name] = tuple(_entry(several.get(step, ()), i) for step in places)
        yield Map(
            *(title, y, "sampled steps", tuple(rows), tuple(places), tuple(rows.values())),
            share=measure != "logit_max",
        )


def _entry(values: Sequence[float | None], i: int) -> float | None:
    return values[i] if i < len(values) else None


def _places(measure: str, known: Sequence[tuple[LayerSeries, Course]]) -> list[int]:
    """Return the steps of all series; of very many, some evenly spaced ones, and those with NaN or
    Inf."""
    places = steps_with(measure, [one for one, _ in known])
    if len(places) <= _MOST_PLACES:
        return places
    stride = -(-len(places) // _MOST_PLACES)
    lost = {step for _, course in known for step in course.lost}
    return sorted({*places[::stride], *sorted(lost)[:_MOST_PLACES]})


def _row(course: Course, places: Sequence[int]) -> tuple[float | None, ...]:
    lost = set(course.lost)
    pairs = zip(course.steps, course.values, strict=True)
    known = {step: math.nan if step in lost else x for step, x in pairs}
    return tuple(known.get(step) for step in places)
