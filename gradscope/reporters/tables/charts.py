"""Makes charts over depth from a report, and the nested blocks of its modules."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Sequence

from gradscope.charts.maps import Block, Blocks
from gradscope.charts.panels import Curve, Panel, Point, point
from gradscope.records.full_samples import Histogram
from gradscope.records.modules import ModuleCall, ParameterStats
from gradscope.records.report import Report
from gradscope.records.tensors import TensorStats
from gradscope.reporters.header import label
from gradscope.reporters.tables import spreads
from gradscope.typeset.text import plain

_DEPTH = "module, in the order of calls"
_UNITS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B"))


def panels(report: Report) -> tuple[Panel, ...]:
    """Return the charts of gradient flow, activation scale, updates and memory that have values."""
    modules = innermost(report.calls)
    numbered = range(1, len(modules) + 1), modules
    made = (
        _over("gradient flow", "norm of the output gradient", map(gradient, *numbered)),
        _over("activation scale", "root mean square of the output", map(_scale, *numbered)),
        _updates(report.parameters),
        _saved(modules),
        *map(_spread, report.histograms),
    )
    return tuple(panel for panel in made if panel.has_points)


def innermost(calls: Sequence[ModuleCall]) -> list[list[ModuleCall]]:
    """Return the calls of each innermost module, by module, in the order of first calls."""
    owners = {call.name.rpartition(".")[0] for call in calls if call.name}
    owners |= {owner[:i] for owner in owners for i, sign in enumerate(owner) if sign == "."}
    by_name: dict[str, list[ModuleCall]] = {}
    for call in sorted(calls, key=lambda call: call.order):
        if call.name not in owners:
            by_name.setdefault(call.name, []).append(call)
    return list(by_name.values())


def _over(title: str, y: str, points: Iterable[Point], x: str = _DEPTH) -> Panel:
    return Panel(title, x, y, (Curve("", tuple(points)),))


def gradient(x: int, calls: list[ModuleCall]) -> Point:
    """Return the median norm of the gradients at the outputs of a module's calls."""
    outputs = [tensor for call in calls for tensor in call.outputs if tensor.requires_grad]
    if not outputs:
        return Point(x, None, name=label(calls[0].name))
    gradients = [tensor.gradient for tensor in outputs]
    values = [None if stats is None else stats.norm for stats in gradients]
    return point(x, values, label(calls[0].name), lost=any(map(_lost, gradients)))


def _scale(x: int, calls: list[ModuleCall]) -> Point:
    outputs = [tensor.activation for call in calls for tensor in call.outputs]
    outputs = [stats for stats in outputs if stats.norm is not None and stats.numel]
    if not outputs:
        return Point(x, None, name=label(calls[0].name))
    values = [(stats.norm or 0.0) / math.sqrt(stats.numel) for stats in outputs]
    return point(x, values, label(calls[0].name), lost=any(map(_lost, outputs)))


def _updates(parameters: Sequence[ParameterStats]) -> Panel:
    """Chart the update ratio of each parameter; without an optimizer, the gradient ratio."""
    trained = [one for one in parameters if one.requires_grad]
    stepped = any(one.update_ratio is not None for one in trained)
    points = [
        point(
            x,
            [one.update_ratio if stepped else _ratio(one)],
            plain(one.name),
            lost=_lost(one.gradient),
        )
        for x, one in enumerate(trained, 1)
        if one.value.norm or one.gradient is None  # else a ratio to nothing
    ]
    title, y = "gradient ratio", "‖gradient‖ / ‖weight‖"
    if stepped:
        title, y = "update ratio", "‖Δ weight‖ / ‖weight‖"
    return _over(title, y, points, "parameter, in the model's order")


def _ratio(one: ParameterStats) -> float | None:
    norm = one.gradient.norm if one.gradient else None
    return norm / one.value.norm if norm is not None and one.value.norm else None


def _saved(modules: Sequence[list[ModuleCall]]) -> Panel:
    sums = [sum(call.saved_bytes or 0 for call in calls) for calls in modules]
    size, unit = next((u for u in _UNITS if max(sums, default=0) >= u[0]), _UNITS[-1])
    points = tuple(
        Point(x, saved / size if saved else None, name=label(calls[0].name))
        for x, (saved, calls) in enumerate(zip(sums, modules, strict=True), 1)
    )
    return Panel("saved for backward", _DEPTH, unit, (Curve("", points),), bars=True)


def _spread(histogram: Histogram) -> Panel:
    """Return a chart of both signs of one histogram, over powers of two."""
    curves = []
    for sign, counts in (("negative", histogram.negative), ("positive", histogram.positive)):
        places = enumerate(counts, histogram.first)
        points = tuple(Point(x, n, name=f"2^{x} to 2^{x + 1}") for x, n in places)
        curves += [Curve(sign, points)] if any(counts) else []
    title = f"histogram of {spreads.histogram_title(histogram)}"
    return Panel(title, "|x| as a power of two", "values", tuple(curves))


def _lost(stats: TensorStats | None) -> bool:
    return stats is not None and bool((stats.nan or 0) + (stats.inf or 0))


#: More innermost modules than these are no wider than a line each, and deeper ones a tower.
MOST, DEEPEST = 400, 24


def modules(report: Report) -> Blocks | None:
    """Return nested blocks, siblings in the order of first calls; None if there are too few or too
    many.

    Their order is that of the charts over depth wherever modules are called in turn.
    """
    calls: dict[str, list[ModuleCall]] = {}
    for call in sorted(report.calls, key=lambda call: call.order):
        calls.setdefault(call.name, []).append(call)
    inside: dict[str | None, list[str]] = {}
    for name in calls:
        inside.setdefault(_owner(name, calls), []).append(name)
    if len(inside) < 2 or len(calls) > 4 * MOST:
        return None
    order: list[tuple[str, int]] = []
    first: dict[str, int] = {}
    innermost, waiting = 0, [(name, 0) for name in reversed(inside[None])]
    while waiting:
        name, depth = waiting.pop()
        order.append((name, depth))
        first[name] = innermost
        innermost += name not in inside
        waiting += [(part, depth + 1) for part in reversed(inside.get(name, ()))]
    if innermost > MOST or max(depth for _, depth in order) > DEEPEST:
        return None
    last: dict[str, int] = {}
    for name, _ in reversed(order):
        last[name] = last[inside[name][-1]] if name in inside else first[name]
    made = []
    for name, depth in order:
        point = gradient(0, calls[name])
        made.append(Block(label(name), first[name], last[name], depth, point.y, point.mark))
    return Blocks("modules", "norm of the output gradient", tuple(made))


def _owner(name: str, calls: Container[str]) -> str | None:
    """Return the nearest outer module that was called too; None for the outermost."""
    if not name:
        return None
    while name:
        name = name.rpartition(".")[0]
        if name in calls:
            return name
    return None
