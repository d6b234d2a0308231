"""A coordinate check: the slopes of each layer, what grows or vanishes, and the usual picture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from gradscope.charts.panels import MISSING, Curve, Panel, Point, point
from gradscope.pages import Part
from gradscope.records.coord_check import (
    CHANGE,
    GROWS,
    INITIAL,
    NON_FINITE,
    STABLE,
    UNCHANGED,
    UNDETERMINED,
    VANISHES,
    VERDICTS,
    CoordCheckReport,
    LayerScaling,
    Series,
    Slope,
)
from gradscope.reporters.document import Block, Document, Prose, formats
from gradscope.reporters.header import TONES, label, notes, run_facts, some_names
from gradscope.reporters.views import TextView
from gradscope.typeset.console import Line
from gradscope.typeset.numbers import count, number, plural
from gradscope.typeset.tables import Cell, Heading, Table, of_rows
from gradscope.typeset.text import plain

#: Number of names in a sentence, and of curves and panels in a picture.
_NAMES, _CURVES, _PANELS = 4, 5, 6
_SOURCE = "arXiv:2203.03466, table 3"
_SGD = (
    "with SGD, µP's learning rates are ∝ fan_out for input weights and biases, constant for "
    "hidden weights, and ∝ 1/fan_in for output weights"
)
_ADAM = (
    "with {}, µP's learning rates are ∝ 1/fan_in for hidden and output weights, and constant for "
    "input weights and biases"
)
_INITIALISE = (
    "initialise hidden weights with a standard deviation ∝ 1/√fan_in, output weights with ∝ "
    "1/fan_in"
)


def facts(report: CoordCheckReport) -> list[list[str]]:
    """Return the model's settings, and the training's."""
    scale = [f"{plain(one.key)} {', '.join(map(_value, one.values))}" for one in report.scale]
    trained = [plural(report.steps, "step")]
    if report.run.optimizer:
        trained[0] += f" of {plain(report.run.optimizer)}"
    if report.seeds:
        trained.append(f"seeds {report.seeds[0]}–{report.seeds[-1]}")
    model, device, dtype, mode, _ = run_facts(report.run)
    return [[model, device, dtype, mode], [*scale, *trained]]


def _value(value: object) -> str:
    return count(value) if type(value) is int else plain(str(value))


def table(report: CoordCheckReport) -> Table | None:
    """Return a row for each layer, in the order of forward; None without one."""
    if not report.layers:
        return None
    after = "after 1 step" if report.steps == 1 else f"after {count(report.steps)} steps"
    interval = f"its 95 % interval is within ±{report.threshold:g}"
    legend = (
        "slope of log RMS over log width, ± standard error over seeds: 0 where the size does not "
        "depend on the width, 1 where it is proportional to it.",
        f"stable: {interval}; the output may vanish at initialisation.",
    )
    return of_rows(
        "slopes",
        report.layers,
        [
            (Heading("layer", right=False, wraps=True), _name),
            (Heading("type", right=False, keep=20), lambda one: Cell(plain(one.type), "dim")),
            (Heading("initial", keep=60), lambda one: _cell(one, INITIAL)),
            (Heading(after, keep=30), lambda one: _text(one.activation, one.activations[-1:])),
            (Heading("change"), lambda one: _cell(one, CHANGE)),
            (Heading("verdict", right=False), _verdict),
        ],
        legend=legend,
        remedy="use a wider terminal, or -f json",
        names=tuple(label(one.name, one.call) for one in report.layers),
    )


def _name(one: LayerScaling) -> str:
    if not one.name:
        return "output"
    name = label(one.name, one.call)
    return f"{name} (output)" if one.output else name


def _cell(one: LayerScaling, quantity: str) -> Cell:
    """Return a slope's cell, coloured if the verdict is about it."""
    slope = one.initial if quantity == INITIAL else one.change
    values = one.activations[:1] if quantity == INITIAL else one.changes[-1:]
    return Cell(_text(slope, values), _tone(one) if one.quantity == quantity else "")


def _tone(one: LayerScaling) -> str:
    return TONES.get(one.severity or "", "")


def _text(slope: Slope | None, values: Series) -> str:
    if slope is not None:
        value = round(slope.value, 2) or 0.0  # no -0.00
        return f"{value:+.2f} ± {slope.error:.2f}"
    known = [value for step in values for width in step for value in width]
    return "0" if all(value == 0 for value in known) else "n/a"


def _verdict(one: LayerScaling) -> Cell:
    where = " at initialisation" if one.quantity == INITIAL else ""
    return Cell(f"{one.verdict}{where}", _tone(one))


def verdict(report: CoordCheckReport) -> Iterator[Line]:
    """Yield layers that grow, vanish or are unknown, the worst first, with the fix; and a count."""
    order = list(VERDICTS)
    kinds = sorted(
        report.layers, key=lambda one: (order.index(one.verdict), one.quantity == CHANGE)
    )
    for (kind, quantity), several in groupby(kinds, key=lambda one: (one.verdict, one.quantity)):
        layers = list(several)
        names = some_names((f"`{_name(one)}`" for one in layers), _NAMES)
        tone = _tone(layers[0])
        if kind == NON_FINITE:
            yield Line(f"{names}: NaN or Inf {_places(report, layers)}", "non-finite:", tone)
            yield Line("lower the learning rate, or leave these widths out", "help:", indent=1)
        elif kind in (GROWS, VANISHES):
            yield Line(f"{_what(report, quantity)} {names} {_powers(layers, quantity)}", kind, tone)
            yield Line(_advice(report, quantity), "help:", indent=1)
        elif kind == UNDETERMINED:
            yield from _undetermined(report, layers, names, quantity)
        elif kind == UNCHANGED:
            steps = plural(report.steps, "step")
            yield Line(f"{names}: not one number changed in {steps}", "unchanged:")
    yield from _conclusion(report)


def _what(report: CoordCheckReport, quantity: str) -> str:
    if quantity == INITIAL:
        return "with the width, at initialisation:"
    return f"with the width, in {plural(report.steps, 'step')}: the change of"


def _powers(layers: Sequence[LayerScaling], quantity: str) -> str:
    slopes = [one.initial if quantity == INITIAL else one.change for one in layers]
    values = sorted(slope.value for slope in slopes if slope is not None)
    ends = dict.fromkeys(f"width^{value:.2f}" for value in (values[0], values[-1]))
    return f"∝ {' to '.join(ends)}"


def _advice(report: CoordCheckReport, quantity: str) -> str:
    if quantity == INITIAL:
        return f"{_INITIALISE} ({_SOURCE})"
    optimizer = plain(report.run.optimizer or "Adam")
    rates = _SGD if optimizer == "SGD" else _ADAM.format(optimizer)
    return f"{rates} ({_SOURCE}); `optimizer.param_groups` sets them"


def _undetermined(
    report: CoordCheckReport, layers: Sequence[LayerScaling], names: str, quantity: str
) -> Iterator[Line]:
    rounded = quantity == CHANGE and any(one.change is None for one in layers)
    what = "the change" if quantity == CHANGE else "the activation at initialisation"
    if rounded:
        yield Line(
            f"{names}: {what} is zero for some seeds, or within the rounding error of "
            f"{report.run.dtype}",
            "undetermined:",
        )
        if report.run.dtype != "float64":
            yield Line("use `--dtype float64`, or more steps", "help:", indent=1)
        return
    limit = f"±{report.threshold:g}"
    yield Line(f"{names}: the interval of {what} contains a slope of {limit}", "undetermined:")
    more = 2 * len(report.seeds) + 2
    yield Line(f"use `--seeds {more}`, or more and larger widths", "help:", indent=1)


def _places(report: CoordCheckReport, layers: Sequence[LayerScaling]) -> str:
    """Return the first step and the widths at which something is not finite."""
    found = [
        (step, width)
        for one in layers
        for step, values in enumerate(one.activations)
        for width, own in zip(report.widths, values, strict=True)
        if None in own
    ]
    widths = sorted({width for _, width in found})
    return f"after {plural(min(found)[0], 'step')}, at width {', '.join(map(_width, widths))}"


def _width(width: float) -> str:
    return count(int(width)) if width == int(width) else number(width)


_WORDS = {GROWS: ("grows", "grow"), VANISHES: ("vanishes", "vanish")}


def _conclusion(report: CoordCheckReport) -> Iterator[Line]:
    if not report.layers:
        return
    counts = []
    for kind in (*(k for k in VERDICTS if k != STABLE), STABLE):
        n = sum(one.verdict == kind for one in report.layers)
        one, many = _WORDS.get(kind, (kind, kind))
        counts += [f"{count(n)} {one if n == 1 else many}"] if n else []
    ends = f"widths {_width(report.widths[0])}–{_width(report.widths[-1])}"
    how = f"{plural(report.steps, 'step')}, {plural(len(report.seeds), 'seed')}"
    layers = plural(len(report.layers), "layer")
    yield Line(f"{layers}: {', '.join(counts)}. This holds for {ends}, {how}.")


def panels(report: CoordCheckReport) -> tuple[Panel, ...]:
    """Return charts over width: of the activation before the first step, and of its later change.

    If there are many layers, those with the worst verdicts are drawn, and the slopes of all.
    """
    layers = _drawn(report.layers)
    steps = sorted({round(1 + k * (report.steps - 1) / (_PANELS - 2)) for k in range(_PANELS - 1)})
    found = [_panel(report, "activation at initialisation", layers, 0)]
    found += [_panel(report, f"change after {plural(n, 'step')}", layers, n) for n in steps]
    if len(layers) < len(report.layers):
        found.append(_all_slopes(report.layers))
    return tuple(panel for panel in found if panel.has_points)


def _all_slopes(layers: Sequence[LayerScaling]) -> Panel:
    curves = []
    for name, slopes in (
        ("initial", [one.initial for one in layers]),
        ("change", [one.change for one in layers]),
    ):
        points = (
            Point(n, slope.value, slope.low, slope.high, name=_name(one))
            if slope is not None
            else Point(n, None, mark=MISSING, name=_name(one))
            for n, (one, slope) in enumerate(zip(layers, slopes, strict=True), 1)
        )
        curves.append(Curve(name, tuple(points)))
    return Panel("slopes of all layers", "layer", "slope", tuple(curves))


def _drawn(layers: Sequence[LayerScaling]) -> Sequence[LayerScaling]:
    order = list(VERDICTS)
    worst = sorted(layers, key=lambda one: (order.index(one.verdict), not one.output, -_size(one)))
    chosen = worst[:_CURVES]
    return [one for one in layers if one in chosen]


def _size(one: LayerScaling) -> float:
    return max(abs(slope.value) if slope else 0.0 for slope in (one.initial, one.change))


def _panel(
    report: CoordCheckReport, title: str, layers: Sequence[LayerScaling], step: int
) -> Panel:
    curves = []
    for one in layers:
        values = one.changes[step] if step else one.activations[step]
        points = (
            point(width, own, f"width {_width(width)}", lost=None in own)
            for width, own in zip(report.widths, values, strict=True)
        )
        curves.append(Curve(_name(one), tuple(points)))
    if len(layers) < len(report.layers):
        title += f" ({len(layers)} of {len(report.layers)} layers)"
    return Panel(title, "width", "RMS", tuple(curves), log=True)


def document(report: CoordCheckReport, view: TextView, format: str) -> Document:
    """Return the document: the error, if there was one, the slopes, the verdict and the picture."""
    blocks: list[Block] = []
    blocks += filter(None, [report.error])
    blocks += filter(None, [table(report)])
    blocks.append(Prose(tuple(verdict(report)), "verdict"))
    charts = panels(report)
    if charts:
        blocks.append(Part("over width", panels=charts))
    lines = facts(report)
    heading = f"coord-check: {lines[0][0]}"
    return Document(
        "coord-check", lines, notes(report.run.notices), blocks, report.versions, heading=heading
    )


FORMATS = formats(document)
