"""What interventions changed → one table: each tensor's norm before and after."""

from __future__ import annotations

from collections.abc import Sequence

from gradscope.records.full_samples import Change
from gradscope.records.report import Report
from gradscope.reporters.labels import label
from gradscope.reporters.report._view import View
from gradscope.typeset.numbers import NOT_THERE, number, plural
from gradscope.typeset.tables import KEEP, Cell, Heading, Table
from gradscope.typeset.text import plain

#: So many rows are shown without a request for a number of them.
_ROWS = 20
_COLUMNS = (
    Heading("layer", right=False, wraps=True),
    Heading("at", right=False, keep=KEEP - 10),
    Heading("do", right=False, keep=KEEP - 5),
    Heading("before"),
    Heading("after"),
    Heading("factor", keep=KEEP - 8),
    Heading("note", right=False, keep=KEEP - 30, prose=True),
)


def interventions(report: Report, view: View) -> Table | None:
    """A row for each tensor; with ``top`` those that were changed most."""
    found: Sequence[Change] = report.interventions
    if not found:
        return None
    if view.top is not None:
        found = sorted(found, key=_size, reverse=True)
    most = _ROWS if view.top is None else view.top
    shown = found[:most]
    left = f"{len(shown)} of {plural(len(found), 'tensor')} shown" * (len(shown) < len(found))
    noted = any(change.note for change in shown)
    columns = _COLUMNS if noted else _COLUMNS[:-1]
    rows = tuple(_row(change)[: len(columns)] for change in shown)
    legend = "factor: the norm after, divided by the norm before"
    return Table("interventions", columns, rows, left, (legend,))


def _size(change: Change) -> float:
    """How far a factor is from 1."""
    return -1.0 if change.factor is None else abs(change.factor - 1)


def _row(change: Change) -> tuple[Cell, ...]:
    arrow = " ← " if change.at == "grad_input" else " → "
    path = f"{arrow}{plain(change.path)}" if change.path else ""
    do = plain(change.do) + (f" {change.value:g}" if change.value is not None else "")
    return (
        Cell(f"{label(change.name, change.call or 0)}{path}"),
        Cell(plain(change.at)),
        Cell(do),
        *(
            Cell(NOT_THERE if stats is None else number(stats.norm))
            for stats in (change.before, change.after)
        ),
        Cell(NOT_THERE if change.factor is None else number(change.factor)),
        Cell(plain(change.note or ""), "warn"),
    )
