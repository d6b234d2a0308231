"""The step metrics of a run as a table: each over all steps, first, last, lowest and highest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gradscope.records.history import RunHistory
from gradscope.reporters.training.tables.legend import curve_legend, losses, span
from gradscope.reporters.training.tables.metric_values import Metric, clipping, metrics
from gradscope.typeset.curves import NOT_FINITE, curve
from gradscope.typeset.numbers import NOT_THERE, count, number
from gradscope.typeset.tables import KEEP, Cell, Heading, Table, plan

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
#: What one step does not have.
_COURSE = {"first", "min", "min_at", "max", "max_at", "curve"}
_PLACES = {"min_at", "max_at"}


def table(history: RunHistory, width: int | None) -> Table | None:
    """The metrics at a width: the curves take what the figures leave."""
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
    """The curves' room, and what may be hidden for it: the best first, the last as it may be."""
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
    """What the values of some metrics are: ``loss: sum of 4 backwards``."""
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
