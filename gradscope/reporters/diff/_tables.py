"""A comparison → its tables: a row for each output of a call, and for each parameter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from gradscope.records.diff import CallDiff, DiffReport, ParameterDiff, TensorDiff
from gradscope.reporters.diff._view import DiffView
from gradscope.reporters.labels import label
from gradscope.typeset.numbers import NOT_THERE, count, number, plural, shape
from gradscope.typeset.tables import KEEP, Cell, Heading, Table
from gradscope.typeset.text import plain

_OF_ALL = "error: ‖b − a‖ / ‖a‖; cos: the cosine between the two"
_LEGENDS = {
    "runs": (
        f"{_OF_ALL}; max: the largest difference",
        "forced: the teacher-forced error, of the call fed with A's tensors; ×n: n times the noise",
    ),
    "outputs": (f"{_OF_ALL}; max: the largest difference; ×n: n times the noise",),
    "sketches": (f"{_OF_ALL}; estimates, ± 6 %; ×n: n times the noise",),
    "statistics": ("error, max: lower bounds of ‖b − a‖ / ‖a‖ and of the largest difference",),
}
_EMPTY = ("", NOT_THERE)
_Row = TypeVar("_Row", CallDiff, ParameterDiff)


def shown(report: DiffReport, view: DiffView) -> list[Table]:
    """The tables that the view asks for, as far as they have rows."""
    made = [build(report, view) for name, build in _TABLES if view.table in (None, name)]
    return [table for table in made if table.rows]


def calls(report: DiffReport, view: DiffView) -> Table:
    """Each output of a call, its activation and its gradient."""
    rows, caption = _chosen(report.calls, view, _worst_of_call, "output")
    headings = (
        Heading("layer", right=False, wraps=True),
        Heading("in B", right=False, keep=KEEP - 30, wraps=True),
        Heading("type", right=False, keep=KEEP - 60),
        Heading("shape", right=False, keep=KEEP - 70),
        *_headings("out", 0),
        *_headings("grad", 1),
    )
    cells = [
        (
            Cell(label(row.name, row.call) + (f" {plain(row.path)}" if row.path else "")),
            Cell(plain(row.name_b or "")),
            Cell(plain(row.type)),
            Cell(shape(row.shape)),
            *_cells(row.activation),
            *_cells(row.gradient),
        )
        for row in rows
    ]
    return _table("calls", headings, cells, caption, [label(row.name, row.call) for row in rows])


def parameters(report: DiffReport, view: DiffView) -> Table:
    """Each parameter, its value and its gradient."""
    rows, caption = _chosen(report.parameters, view, _worst_of_parameter, "parameter")
    headings = (
        Heading("parameter", right=False, wraps=True),
        Heading("in B", right=False, keep=KEEP - 30, wraps=True),
        Heading("shape", right=False, keep=KEEP - 70),
        Heading("value error", keep=KEEP - 20),
        *_headings("grad", 1),
        Heading("update A", keep=KEEP - 16),
        Heading("update B", keep=KEEP - 16),
    )
    cells = [
        (
            Cell(plain(row.name)),
            Cell(plain(row.name_b or "")),
            Cell(shape(row.shape)),
            _error(row.value),
            *_cells(row.gradient),
            *(Cell(_figure(ratio)) for ratio in row.update_ratios or (None, None)),
        )
        for row in rows
    ]
    return _table("parameters", headings, cells, caption, [plain(row.name) for row in rows])


def _chosen(
    rows: Sequence[_Row], view: DiffView, worst: Callable[[_Row], float], noun: str
) -> tuple[list[_Row], str]:
    if view.top is None or view.top >= len(rows):
        return list(rows), ""
    chosen = sorted(rows, key=worst, reverse=True)[: view.top]
    return chosen, f"{count(view.top)} of {plural(len(rows), noun)} shown, the largest errors"


def _worst_of_call(row: CallDiff) -> float:
    return max(_size(row.activation), _size(row.gradient))


def _worst_of_parameter(row: ParameterDiff) -> float:
    return max(_size(row.value), _size(row.gradient))


def _size(diff: TensorDiff | None) -> float:
    if diff is None:
        return 0.0
    return float("inf") if diff.note else diff.error or 0.0


def _headings(what: str, rank: int) -> tuple[Heading, ...]:
    return (
        Heading(f"{what} error", keep=KEEP - 1 - rank),
        Heading(f"{what} cos", keep=KEEP - 40 - rank),
        Heading(f"{what} max", keep=KEEP - 50 - rank),
        Heading(f"{what} forced", keep=KEEP - 10 - rank),
        Heading(f"{what} A–ref", keep=KEEP - 15 - rank),
        Heading(f"{what} B–ref", keep=KEEP - 15 - rank),
    )


def _cells(diff: TensorDiff | None) -> tuple[Cell, ...]:
    if diff is None:
        return (Cell(""),) * 6
    cosine = NOT_THERE if diff.cosine is None else f"{diff.cosine:.4f}"
    references = (Cell(_figure(one)) for one in (diff.reference_a, diff.reference_b))
    return (_error(diff), Cell(cosine), Cell(_figure(diff.largest)), _forced(diff), *references)


def _error(diff: TensorDiff) -> Cell:
    if diff.note:
        return Cell(plain(diff.note), "warn")
    return _judged(diff.error, diff.noise, diff.diverges and diff.teacher_forced is None)


def _forced(diff: TensorDiff) -> Cell:
    return _judged(diff.teacher_forced, diff.teacher_forced_noise, diff.diverges)


def _judged(error: float | None, noise: float | None, diverges: bool) -> Cell:
    """An error; one above the noise as a multiple of it, too."""
    if error is None or not noise or not diverges:
        return Cell(_figure(error), "bad" if diverges else "")
    return Cell(f"{_figure(error)} ×{number(error / noise)}", "bad")


def _figure(x: float | None) -> str:
    return NOT_THERE if x is None else "0" if x == 0 else f"{x:.1e}"


_TABLES = (("calls", calls), ("parameters", parameters))


def legend(report: DiffReport) -> tuple[str, ...]:
    """What the columns are."""
    nearer = f"A–ref, B–ref: the error of each from a run of A in {report.reference}"
    updates = "update A, update B: ‖Δw‖ / ‖w‖ of the optimizer's step"
    return (
        *_LEGENDS[report.measured],
        *([nearer] if report.reference else []),
        *([updates] if any(row.update_ratios for row in report.parameters) else []),
    )


def _table(
    title: str,
    headings: Sequence[Heading],
    rows: Sequence[tuple[Cell, ...]],
    caption: str,
    names: Sequence[str],
) -> Table:
    """Without the columns in which nothing is, or nothing is known."""
    kept = [i for i in range(len(headings)) if any(row[i].text not in _EMPTY for row in rows)]
    return Table(
        title,
        tuple(headings[i] for i in kept),
        tuple(tuple(row[i] for i in kept) for row in rows),
        caption,
        names=tuple(names),
    )
