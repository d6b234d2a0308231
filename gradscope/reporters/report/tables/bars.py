"""A column of bars beside the column that they show."""

from __future__ import annotations

from collections.abc import Sequence

from gradscope.reporters.report.tables.columns import Column, Row
from gradscope.typeset.bars import log_bars
from gradscope.typeset.tables import Cell, Heading

_TITLE = "log scale"

Cells = tuple[tuple[Cell, ...], ...]


def with_bars(
    column: Column[Row],
    columns: Sequence[Column[Row]],
    headings: tuple[Heading, ...],
    cells: Cells,
    members: Sequence[Sequence[Row]],
) -> tuple[tuple[Heading, ...], Cells]:
    """The headings and cells with bars after ``column``; ``members`` are the rows of each row.

    A row that stands for several has the bar of the largest.
    """
    place = [one.key for one in columns].index(column.key) + 1
    bars = log_bars([max(_magnitude(column, row) for row in rows) for rows in members])
    heading = Heading(_TITLE, False, headings[place - 1].keep)
    return (*headings[:place], heading, *headings[place:]), tuple(
        (*row[:place], Cell(bar), *row[place:]) for row, bar in zip(cells, bars, strict=True)
    )


def legend(key: str) -> str:
    """What the bars are of."""
    return f"{_TITLE}: of {key}, by magnitude"


def _magnitude(column: Column[Row], row: Row) -> float:
    """The size of a number; 0, which has no bar, for anything else."""
    value = column.rank(row)
    return abs(value) if isinstance(value, int | float) else 0.0
