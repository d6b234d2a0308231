"""Tables of cells → lines of text at a width: what to hide, where to break, how to align."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len

from gradscope.typeset.text import break_name

#: How long a column stays when a terminal narrows: the lowest goes first, a ``KEEP`` one last.
KEEP = 100

GAP = 2
#: A name keeps this much, or a third of the width, before other columns have to go.
_NAME = 28
#: Columns from here on outlast the breaking of names.
_ESSENTIAL = KEEP - 5


@dataclass(frozen=True, slots=True)
class Cell:
    """What stands in one place of a table; ``tone`` may colour it and never says more than it."""

    text: str
    tone: str = ""


@dataclass(frozen=True, slots=True)
class Heading:
    """A column as a layout needs it."""

    key: str
    right: bool = True
    keep: int = KEEP
    wraps: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Rows ready to be laid out. ``fixed`` columns were asked for: no width may hide them.

    ``remedy`` tells how to see what a narrow terminal hides.
    """

    title: str
    columns: tuple[Heading, ...]
    rows: tuple[tuple[Cell, ...], ...]
    caption: str = ""
    legend: tuple[str, ...] = ()
    fixed: bool = False
    remedy: str = "use a wider terminal"


@dataclass(frozen=True, slots=True)
class Plan:
    """Which columns of a table are shown, how wide each is, and which are not shown."""

    shown: tuple[int, ...]
    widths: tuple[int, ...]
    hidden: tuple[str, ...]


def plan(table: Table, width: int | None) -> Plan:
    """Hide columns by priority until the rest fits; then break names; never cut anything."""
    natural = [_natural(table, i) for i in range(len(table.columns))]
    shown = list(range(len(natural)))
    if width is None:
        return Plan(tuple(shown), tuple(natural), ())
    least = [_least(table, i, natural[i]) for i in shown]
    soft = [min(n, max(m, _NAME, width // 3)) for n, m in zip(natural, least, strict=True)]
    breakable = [soft[i] if table.columns[i].wraps else natural[i] for i in shown]
    shown = _drop(table, shown, breakable, width, _ESSENTIAL)
    shown = _refill(table.columns, shown, breakable, width)
    shown = _drop(table, shown, least, width, KEEP + 1)
    hidden = [c.key for i, c in enumerate(table.columns) if i not in shown]
    return Plan(tuple(shown), tuple(_widths(table, shown, natural, least, width)), tuple(hidden))


def _natural(table: Table, i: int) -> int:
    cells = (cell_len(row[i].text) for row in table.rows)
    return max(cell_len(table.columns[i].key), *cells, 0)


def _least(table: Table, i: int, natural: int) -> int:
    if not table.columns[i].wraps:
        return natural
    lines = (cell_len(line) for row in table.rows for line in break_name(row[i].text, 1))
    return max(cell_len(table.columns[i].key), *lines, 0)


def _total(shown: Sequence[int], widths: Sequence[int]) -> int:
    return sum(widths[i] for i in shown) + GAP * (len(shown) - 1)


def _drop(
    table: Table, shown: Sequence[int], widths: Sequence[int], width: int, bound: int
) -> list[int]:
    """Without the columns that say least, until the rest fits; two always stay, else what table."""
    found = list(shown)
    while not table.fixed and len(found) > 2 and _total(found, widths) > width:
        candidates = [i for i in found[1:] if table.columns[i].keep < bound]
        if not candidates:
            break
        found.remove(min(candidates, key=lambda i: (table.columns[i].keep, -i)))
    return found


def _refill(
    columns: Sequence[Heading], shown: Sequence[int], widths: Sequence[int], width: int
) -> list[int]:
    """What was hidden and fits after all, since a wider column went after it."""
    found = list(shown)
    for i in sorted(set(range(len(columns))) - set(shown), key=lambda i: -columns[i].keep):
        if _total([*found, i], widths) <= width:
            found.append(i)
    return sorted(found)


def _widths(
    table: Table, shown: Sequence[int], natural: Sequence[int], least: Sequence[int], width: int
) -> list[int]:
    """Natural widths, but names give way, down to their longest part."""
    excess = _total(shown, natural) - width
    widths = list(natural)
    for i in shown:
        if table.columns[i].wraps and excess > 0:
            widths[i] = max(least[i], natural[i] - excess)
            excess -= natural[i] - widths[i]
    return widths


def lay_out(table: Table, laid: Plan) -> list[list[Cell]]:
    """The header and each row as lines of cells, padded so that they can be set side by side."""
    lines = [[_pad(Cell(c.key, "head"), c.right, laid.widths[i]) for i, c in _shown(table, laid)]]
    lines.append([Cell("─" * _total(laid.shown, laid.widths), "dim")])
    for row in table.rows:
        stacks = [
            break_name(row[i].text, laid.widths[i]) if c.wraps else [row[i].text]
            for i, c in _shown(table, laid)
        ]
        for depth in range(max(map(len, stacks))):
            lines.append(
                [
                    _pad(
                        Cell(stack[depth] if depth < len(stack) else "", row[i].tone),
                        c.right,
                        laid.widths[i],
                    )
                    for (i, c), stack in zip(_shown(table, laid), stacks, strict=True)
                ]
            )
    return lines


def _shown(table: Table, laid: Plan) -> list[tuple[int, Heading]]:
    return [(i, table.columns[i]) for i in laid.shown]


def _pad(cell: Cell, right: bool, width: int) -> Cell:
    space = " " * (width - cell_len(cell.text))
    return Cell(space + cell.text if right else cell.text + space, cell.tone)
