"""Makes charts of a run over its steps: step metrics with events, and layers as maps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from gradscope.charts.maps import PLACES, Map
from gradscope.charts.panels import NOT_FINITE, Curve, Panel, Point, Stretch, point
from gradscope.records.tensors import MEASURES
from gradscope.records.training import Course, LayerSeries, RunHistory, TrainingFinding, steps_with
from gradscope.records.transformer import TransformerSeries
from gradscope.reporters.header import TONES, label
from gradscope.reporters.header import stretches as stretches_of
from gradscope.reporters.run.step_metrics import Metric, metrics
from gradscope.reporters.tables.transformer import PARTS
from gradscope.typeset.numbers import count
from gradscope.typeset.text import plain

#: Number of findings and events shown on a time line.
_MOST = 60
#: A metric that is drawn with the one before it.
_BESIDE = "after clipping"
#: Each map's title, what its values are, of which series, and the measure.
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
#: The same of heads and experts.
_PART_MAPS = (
    ("attention logits", "largest logit of each head", "attention", "logit_max"),
    ("attention evenness", "entropy ÷ ln(visible keys) of each head", "attention", "evenness"),
    ("expert load", "share of the assignments", "experts", "share"),
)
#: A map is drawn from so many steps, and shows a quarter of them.
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
        return Point(step, None, mark=NOT_FINITE if lost else "", name=f"step {step}")
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
