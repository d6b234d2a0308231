"""Charts over depth from a report, and the nested blocks of its modules; histograms, and losses of
narrower dtypes, as tables.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Sequence

from gradscope.charts.maps import Block, Blocks
from gradscope.charts.panels import Curve, Panel, Point, point
from gradscope.records.full_samples import Histogram
from gradscope.records.modules import ModuleCall, ParameterStats
from gradscope.records.report import PrecisionForecast, Report
from gradscope.records.tensors import TensorStats
from gradscope.reporters.header import label
from gradscope.typeset.numbers import count, number, plural, share
from gradscope.typeset.sparklines import bar
from gradscope.typeset.tables import KEEP, Cell, Heading, Table, of_columns
from gradscope.typeset.text import plain

#: The most rows of one histogram, and a bar's length in cells.
_ROWS, _CELLS = 20, 12


def histogram_title(histogram: Histogram) -> str:
    """Return the title of a histogram, with its tensor."""
    path = plain(histogram.path)
    if histogram.call is None:
        return path if histogram.kind == "value" else f"{path} gradient"
    place = f" → {path}" if path else ""
    return f"{label(histogram.name, histogram.call)}{place} {histogram.kind}"


def histogram_table(histogram: Histogram) -> Table:
    width = max(1, -(-len(histogram.positive) // _ROWS))
    # Rows begin at multiples of their width, so that two histograms of one width can be compared.
    start = histogram.first - histogram.first % width
    padding = (0,) * (histogram.first - start)
    sides = [_merged((*padding, *side), width) for side in (histogram.negative, histogram.positive)]
    top = max((n for side in sides for n in side), default=0)
    below, above = ([count(n) if n else "" for n in side] for side in sides)
    bars = [[bar(n / top, _CELLS) if n else "" for n in side] for side in sides]
    edges = [number(2.0 ** (start + i * width)) for i in range(len(sides[0]))]
    made = of_columns(
        f"histogram of {histogram_title(histogram)}",
        [
            (Heading("|x| from"), edges),
            (Heading("negative"), below),
            (Heading("", False, 50), bars[0]),
            (Heading("positive"), above),
            (Heading("", False, 50), bars[1]),
        ],
    )
    legend = f"each row holds |x| up to the next one's: a factor of {2**width}"
    return Table(made.title, made.columns, made.rows, _facts(histogram), (legend,) if edges else ())


def _merged(counts: Sequence[int], width: int) -> list[int]:
    return [sum(counts[i : i + width]) for i in range(0, len(counts), width)]


def _facts(histogram: Histogram) -> str:
    facts = [plural(histogram.numel, "value")]
    if histogram.zeros:
        facts.append(f"{share(histogram.zeros, histogram.numel)} zero")
    facts += [
        f"{count(n)} {word}" for n, word in ((histogram.nan, "nan"), (histogram.inf, "inf")) if n
    ]
    return " · ".join(facts)


#: Number of layers in a table; the caption counts the others, which lose less.
SHOWN = 10
#: With a safe scale, no gradient overflows, and at most this share of the parameters' gradients
#: becomes zero.
_LOST = 0.01
PRECISION_LEGEND = (
    "↓ flushes to zero, ↑ overflows: shares of the elements that are not zero",
    "a safe scale: no gradient overflows, and at most {100 * _LOST:g} % of the parameters' "
    "gradients flush to zero",
)
_Losses = dict[str, tuple[float, float]]


def precision_tables(forecasts: Sequence[PrecisionForecast], top: int | None = None) -> list[Table]:
    """Return a table for each dtype: shares that a cast loses, by loss scale.

    Layers that lose nothing are counted, not listed; the caption has the smallest safe scale.
    """
    return [
        _precision(dtype, [f for f in forecasts if f.dtype == dtype], SHOWN if top is None else top)
        for dtype in dict.fromkeys(forecast.dtype for forecast in forecasts)
    ]


def safe_scale(forecasts: Sequence[PrecisionForecast]) -> float | None:
    """Return the smallest loss scale that is safe for the full model; None if none of the tried
    ones is."""
    safe = (f.scale for f in forecasts if f.overflow == 0 and f.underflow <= _LOST)
    return min(safe, default=None)


def scale(x: float) -> str:
    """Return a loss scale as text: ``1``, ``2^16``."""
    power = math.log2(x) if x > 0 else 0.5
    if power.is_integer() and power >= 4:
        return f"2^{int(power)}"
    return f"{x:g}"


def _precision(dtype: str, forecasts: Sequence[PrecisionForecast], top: int) -> Table:
    scales = sorted({f.scale for f in forecasts if f.kind == "gradient"})
    keys = ["activation"] * any(f.kind == "activation" for f in forecasts)
    keys += [f"grad ×{scale(s)}" for s in scales]
    rows: dict[str, _Losses] = {}
    for f in forecasts:
        if f.kind == "total":
            continue
        key = "activation" if f.kind == "activation" else f"grad ×{scale(f.scale)}"
        losses = rows.setdefault(label(f.name, f.call), {})
        # A call with several outputs is as bad as its worst.
        before = losses.get(key, (0.0, 0.0))
        losses[key] = (max(before[0], f.underflow), max(before[1], f.overflow))
    losing = {name: losses for name, losses in rows.items() if _total(losses) > 0}
    worst = sorted(losing, key=lambda name: -_total(losing[name]))
    shown = tuple(
        (Cell(name), *(_cell(losing[name].get(key)) for key in keys)) for name in worst[:top]
    )
    columns = (
        Heading("layer", right=False, wraps=True),
        *(Heading(key, keep=KEEP - 10 - i) for i, key in enumerate(keys)),
    )
    counts = ", ".join(_counts(len(rows), len(losing), len(shown)))
    return Table(plain(dtype), columns, shown, _verdict(forecasts), (counts,))


def _verdict(forecasts: Sequence[PrecisionForecast]) -> str:
    totals = [f for f in forecasts if f.kind == "total"]
    if not totals:
        return ""
    safest = safe_scale(totals)
    if safest is None:
        return f"no safe loss scale up to {scale(max(f.scale for f in totals))}"
    return "needs no loss scale" if safest == 1 else f"smallest safe loss scale {scale(safest)}"


def _counts(places: int, losing: int, shown: int) -> Iterator[str]:
    if not losing:
        yield f"none of {plural(places, 'place')} loses anything"
        return
    yield f"{count(losing)} of {plural(places, 'place')} lose something"
    if shown < losing:
        yield f"the worst {count(shown)} are shown"


def _total(losses: _Losses) -> float:
    return sum(under + over for under, over in losses.values())


def _cell(loss: tuple[float, float] | None) -> Cell:
    if loss is None:
        return Cell("")
    under, over = loss
    losses = [f"{share(under)} ↓"] * (under > 0) + [f"{share(over)} ↑"] * (over > 0)
    tone = "bad" if over > 0 else "warn" if under > 0.01 else ""
    return Cell(" ".join(losses) or "0", tone)


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
    title = f"histogram of {histogram_title(histogram)}"
    return Panel(title, "|x| as a power of two", "values", tuple(curves))


def _lost(stats: TensorStats | None) -> bool:
    return stats is not None and bool((stats.nan or 0) + (stats.inf or 0))


#: With more innermost modules, a block would be thinner than a line; with more levels, the blocks
#: would be too tall.
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
