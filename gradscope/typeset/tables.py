"""Tables of cells, and the columns that fit a width: rich sets the planned table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from rich.cells import cell_len

from gradscope.typeset.text import break_name, break_words

Of = TypeVar("Of")

#: Priority of a column when a terminal narrows: the lowest goes first, a ``KEEP`` one last.
KEEP = 100

GAP = 2
#: A name keeps this much, or a third of the width, before other columns have to go.
_NAME = 28
#: Columns from here on outlast the breaking of names.
_ESSENTIAL = KEEP - 5


@dataclass(frozen=True, slots=True)
class Cell:
    """Content of a table's cell; ``tone`` may colour it and never adds information."""

    text: str
    tone: str = ""


@dataclass(frozen=True, slots=True)
class Heading:
    """A column's layout: ``wraps`` breaks names after dots, ``prose`` at spaces.

    ``beside`` is the key of a column that this one needs beside it.
    """

    key: str
    right: bool = True
    keep: int = KEEP
    wraps: bool = False
    prose: bool = False
    beside: str = ""

    def lines(self, text: str, width: int) -> list[str]:
        """Break a cell's text into as many lines as the width needs."""
        if self.wraps:
            return break_name(text, width)
        return break_words(text, width) if self.prose else [text]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows ready to be laid out. ``fixed`` columns were asked for: no width may hide them.

    ``remedy`` is the option that shows hidden columns. ``names`` are the subjects of the rows,
    "" for one that goes on with the row before it: a page finds rows by them.
    """

    title: str
    columns: tuple[Heading, ...]
    rows: tuple[tuple[Cell, ...], ...]
    caption: str = ""
    legend: tuple[str, ...] = ()
    fixed: bool = False
    remedy: str = "use a wider terminal"
    names: tuple[str, ...] = ()


def of_columns(
    title: str,
    columns: Iterable[tuple[Heading, Sequence[str | Cell]]],
    tones: Sequence[str] = (),
    **more: Any,
) -> Table:
    """Make a table of the columns that have a value; texts have their row's tone."""
    kept = []
    for heading, texts in columns:
        pairs = zip(texts, tones or [""] * len(texts), strict=True)
        cells = [Cell(one, tone) if isinstance(one, str) else one for one, tone in pairs]
        if any(cell.text for cell in cells):
            kept.append((heading, cells))
    rows = tuple(zip(*(cells for _, cells in kept), strict=True))
    return Table(title, tuple(heading for heading, _ in kept), rows, **more)


def of_rows(
    title: str,
    rows: Sequence[Of],
    columns: Iterable[tuple[Heading, Callable[[Of], str | Cell]]],
    **more: Any,
) -> Table:
    """Return the same table, each cell computed from its row."""
    return of_columns(title, [(heading, list(map(of, rows))) for heading, of in columns], **more)


@dataclass(frozen=True, slots=True)
class Plan:
    """The shown columns with their widths, and the names of the hidden ones."""

    widths: dict[int, int]
    hidden: tuple[str, ...] = ()


def plan(table: Table, width: int | None) -> Plan:
    """Hide columns by priority until the rest fits; then break texts; never cut anything."""
    columns = table.columns
    natural = [
        max(cell_len(column.key), *(cell_len(row[i].text) for row in table.rows), 0)
        for i, column in enumerate(columns)
    ]
    if width is None:
        return Plan(dict(enumerate(natural)))
    least = [_least(table, i, natural[i]) for i in range(len(columns))]
    soft = [min(n, max(m, _NAME, width // 3)) for n, m in zip(natural, least, strict=True)]
    shown = _drop(table, range(len(columns)), soft, width, _ESSENTIAL)
    # Hidden columns that fit after all, since a wider one went after them.
    for i in sorted(set(range(len(columns))) - set(shown), key=lambda i: -columns[i].keep):
        alone = columns[i].beside and columns[i].beside not in {columns[j].key for j in shown}
        if not alone and _total([*shown, i], soft) <= width:
            shown.append(i)
    shown = _drop(table, sorted(shown), least, width, KEEP + 1)
    widths: dict[int, int] = {}
    excess = _total(shown, natural) - width
    for i in shown:
        widths[i] = max(least[i], natural[i] - max(0, excess))
        excess -= natural[i] - widths[i]
    return Plan(widths, tuple(c.key for i, c in enumerate(columns) if i not in widths))


def _least(table: Table, i: int, natural: int) -> int:
    """Return the smallest width of a column: the width of its longest unbreakable part."""
    column = table.columns[i]
    if not (column.wraps or column.prose):
        return natural
    lines = (cell_len(line) for row in table.rows for line in column.lines(row[i].text, 1))
    return max(cell_len(column.key), *lines, 0)


def _total(shown: Sequence[int], widths: Sequence[int]) -> int:
    return sum(widths[i] for i in shown) + GAP * (len(shown) - 1)


def _drop(
    table: Table, shown: Sequence[int], widths: Sequence[int], width: int, bound: int
) -> list[int]:
    """Drop the least important columns until the rest fits; two always stay."""
    found = list(shown)
    while not table.fixed and len(found) > 2 and _total(found, widths) > width:
        candidates = [i for i in found[1:] if table.columns[i].keep < bound]
        if not candidates:
            break
        found.remove(min(candidates, key=lambda i: (table.columns[i].keep, -i)))
    return found
