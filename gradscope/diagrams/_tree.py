"""Makes a table from groups: a tree by module, with figures, targets of each row, and frontiers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from gradscope.diagrams.graph import GraphView
from gradscope.diagrams.graph.flow import MISSING, NONFINITE, ZERO, Flow
from gradscope.diagrams.graph.groups import (
    Group,
    dotted,
    label,
    operation,
    operations_below,
    shown,
    sizes,
)
from gradscope.reporters.header import some_names
from gradscope.typeset.numbers import count, number, size
from gradscope.typeset.sparklines import log_bars
from gradscope.typeset.tables import Heading, Table, of_columns, plan
from gradscope.typeset.text import plain

#: Number of targets named in a row: an operation may have dozens.
_NAMED = 4


@dataclass(frozen=True, slots=True)
class Row:
    """A group or an operation with the strokes that lead to it; ``is_open`` shows its parts.

    ``only`` is the one operation of an open module that has no more: both share the row.
    """

    strokes: str
    part: Group | int
    around: Group
    is_open: bool = False
    only: int | None = None

    @property
    def operation(self) -> int | None:
        """The operation that the row shows, if it shows one."""
        return self.part if isinstance(self.part, int) else self.only


def leads(lines: Sequence[Row], flow: Flow, places: dict[int, Group | int]) -> list[str]:
    """Return for each row the target of its edges, unless that is only the row below.

    A closed group's leaves are counted elsewhere; an open group is shown by its rows. Names within
    the same module are reported without it.
    """
    others = _others(lines)
    rows: dict[int, Row] = {}
    for row in lines:
        for part in (row.part, row.only):
            if part is not None:
                rows[_key(part)] = row
    found: list[str] = []
    for row, below in zip(lines, _below(lines), strict=True):
        closed = isinstance(row.part, Group) and not row.is_open
        ids = list(operations_below(row.part)) if isinstance(row.part, Group) and closed else []
        if row.operation is not None:
            ids = [row.operation]
        targets: Counter[str] = Counter()
        ahead: set[int] = set()
        for id in ids:
            for child in flow.onward[id]:
                if flow.is_leaf(child):
                    if not closed:
                        around = row.part if isinstance(row.part, Group) else row.around
                        targets[_beside(operation(flow.nodes[child]), around)] += 1
                        ahead.add(-1)
                    continue
                place = places[child]
                if closed and place is row.part:
                    continue
                targets[_called(child, place, row, rows, others, flow)] += 1
                ahead.add(_key(others.get(child, place)))
        straight = below is not None and ahead <= {_key(below.part), _key(below.only)}
        plain_edge = straight and (closed or sum(targets.values()) == 1)
        found.append("" if plain_edge else _listed(targets, closed))
    return found


def _below(lines: Sequence[Row]) -> list[Row | None]:
    """Return for each row the next row that is not a heading."""
    found: list[Row | None] = []
    upcoming: Row | None = None
    for row in reversed(lines):
        found.append(upcoming)
        if not row.is_open or row.only is not None:
            upcoming = row
    return found[::-1]


def _others(lines: Sequence[Row]) -> dict[int, Group]:
    """Return the member of an open fold for each operation of its further members."""
    found: dict[int, Group] = {}
    for row in lines:
        if row.is_open and isinstance(row.part, Group):
            for member in row.part.members[1:]:
                for id in operations_below(member):
                    found[id] = member
    return found


def _called(
    child: int,
    place: Group | int,
    row: Row,
    rows: dict[int, Row],
    others: dict[int, Group],
    flow: Flow,
) -> str:
    """Return a row's name as another row shows it, shortened within the same module."""
    if child in others:
        return _beside(dotted(others[child]), row.around)
    if isinstance(place, int):
        shown = rows[place]
        if shown.only is None or not isinstance(shown.part, Group):
            return operation(flow.nodes[place])
        place = shown.part
    if rows[_key(place)].around is row.around:
        return label(place)
    return _beside(dotted(place), row.around)


def _beside(name: str, around: Group) -> str:
    """Return a dotted name without the prefix that all in the same module share."""
    module = (around.members[0] if around.members else around).name
    return name.removeprefix(f"{module}.") if module else name


def _listed(targets: Counter[str], closed: bool) -> str:
    texts = [f"{text} ×{n}" if n > 1 and not closed else text for text, n in targets.items()]
    return some_names(texts, _NAMED)


def _key(part: Group | int | None) -> int:
    """Return a sort key: ids are from 0 on; -1 means leaves."""
    if part is None:
        return -2
    return part if isinstance(part, int) else -id(part) - 3


ABSENT = "–"
LEADS = "leads to"
_WORDS = {ZERO: "zero", MISSING: "missing", NONFINITE: "NaN/Inf"}
_ROW = "n equal blocks in a row, each of which leads to the next"
_SIDE = "n equal blocks, with no path from one to another; shapes from the smallest to the largest"
_FOLD = (
    "figures are of all n blocks, gradients from the smallest to the largest; rows below it show "
    "the block nearest the start"
)


def rows(root: Group, is_open: Callable[[Group], bool]) -> list[Row]:
    """Return the visible rows, in order; the outermost group has none."""
    found: list[Row] = []
    stack = [(part, root, "", "") for part in reversed(root.parts)]
    while stack:
        part, around, strokes, below = stack.pop()
        if isinstance(part, int) or not is_open(part):
            found.append(Row(strokes, part, around))
            continue
        first = part.parts[0]
        if len(part.parts) == 1 and isinstance(first, int):
            found.append(Row(strokes, part, around, True, first))
            continue
        found.append(Row(strokes, part, around, True))
        last = len(part.parts) - 1
        for i, inner in reversed(list(enumerate(part.parts))):
            edge, under = ("└ ", "  ") if i == last else ("├ ", "│ ")
            stack.append((inner, part, below + edge, below + under))
    return found


def table(
    root: Group, flow: Flow, is_open: Callable[[Group], bool], view: GraphView, start: str
) -> Table:
    """Return the tree as a table; in a narrow terminal, columns are dropped by priority."""
    lines = rows(root, is_open)
    marks = [_note(row, flow) for row in lines]
    by_bytes = view.by == "saved"
    name = "module" if all(row.operation is None for row in lines) else "module or operation"
    columns: list[tuple[Heading, Sequence[str]]] = [
        (Heading(name, False), [_name(row, flow) for row in lines]),
        (Heading("type or shape", False, 50), [_type(row, flow) for row in lines]),
        (Heading("ops", keep=80), [_count(row, "ops") for row in lines]),
        (Heading("leaves", keep=40), [_count(row, "leaves") for row in lines]),
        (Heading("saved", keep=98 if by_bytes else 60), [_bytes(row, flow) for row in lines]),
        (Heading("grad", keep=70 if by_bytes else 98), [_gradient(row, flow) for row in lines]),
        (Heading("log scale", False, 55), log_bars([_figure(row, flow, view.by) for row in lines])),
        (Heading(LEADS, False, 85), leads(lines, flow, shown(root, is_open))),
        (Heading("frontier", False, 99), marks),
    ]
    caption = f"nearest to {start} first"
    made = of_columns("by module", columns, list(map(_tone, marks)), caption=caption)
    return replace(made, legend=tuple(_legend(lines, made, view, start)))


def _legend(lines: Sequence[Row], made: Table, view: GraphView, start: str) -> Iterator[str]:
    """Explain the marks in the shown lines."""
    folds = [row.part for row in lines if isinstance(row.part, Group) and row.part.times > 1]
    fold = _FOLD.replace("the start", start)
    if any(not one.parallel for one in folds):
        yield f"×n: {_ROW}; {fold}"
    if any(one.parallel for one in folds):
        yield f"×n, side by side: {_SIDE}; {fold}"
    hidden = plan(made, view.width).hidden
    there = {heading.key for heading in made.columns} - set(hidden)
    if LEADS in there:
        yield f"{LEADS}: empty if only to the next row; leaves have their shapes"
    if "log scale" in there:
        yield f"log scale: of {'saved' if view.by == 'saved' else 'grad'}"
    if any(isinstance(row.part, Group) and not row.is_open for row in lines):
        yield "more: --depth N, --expand PATTERN for some operations, --full for all"


def gradient(norm: float | None, nonfinite: int) -> str:
    """Return a gradient's norm; if elements are NaN or Inf, their number."""
    if nonfinite:
        return f"{count(nonfinite)} NaN/Inf"
    return ABSENT if norm is None else number(norm)


def saved(n: int | None) -> str:
    """Return bytes as text; an unknown size is not 0."""
    return ABSENT if n is None else size(n)


def mark_words(mark: str) -> str:
    """Return a frontier in words."""
    return f"{_WORDS[mark]} from here"


def _name(row: Row, flow: Flow) -> str:
    if isinstance(row.part, int):
        return row.strokes + operation(flow.nodes[row.part])
    only = "" if row.only is None else f": {operation(flow.nodes[row.only])}"
    return f"{row.strokes}{label(row.part)}{only}"


def _type(row: Row, flow: Flow) -> str:
    kind = plain(row.part.type or "") if isinstance(row.part, Group) else ""
    return f"{kind} {sizes(flow, row.operation)}".strip() if row.operation is not None else kind


def _count(row: Row, key: str) -> str:
    return count(getattr(row.part, key)) if isinstance(row.part, Group) else ""


def _bytes(row: Row, flow: Flow) -> str:
    part = row.part
    return saved(flow.nodes[part].saved_bytes if isinstance(part, int) else part.saved_bytes)


def _figure(row: Row, flow: Flow, by: str) -> float | None:
    one = flow.nodes[row.part] if isinstance(row.part, int) else row.part
    return one.saved_bytes if by == "saved" else one.grad_norm


def _gradient(row: Row, flow: Flow) -> str:
    part = row.part
    if isinstance(part, int):
        node = flow.nodes[part]
        return gradient(node.grad_norm, node.grad_nonfinite)
    low, high = part.grad_low, part.grad_high
    if low is not None and high is not None and low != high and not part.nonfinite:
        return f"{number(low)} … {number(high)}"
    return gradient(part.grad_norm, part.nonfinite)


def _note(row: Row, flow: Flow) -> str:
    """Return the note at the place where a gradient is first lost: this row, or a hidden part."""
    notes: list[str] = []
    if isinstance(row.part, Group) and not row.is_open:
        notes += [mark_words(row.part.mark)] if row.part.mark else []
        notes += [f"{_WORDS[mark]} from inside" for mark in row.part.within]
    place = row.operation
    if place is not None:
        notes += [mark_words(flow.marks[place])] if place in flow.marks else []
        for leaf in flow.leaves.get(place, ()):
            if leaf in flow.marks and flow.home[leaf] == place:
                name = plain(flow.nodes[leaf].name or flow.nodes[leaf].kind)
                notes.append(f"{_WORDS[flow.marks[leaf]]} at {name}")
    return "; ".join(notes)


def _tone(mark: str) -> str:
    if not mark:
        return ""
    return "bad" if "NaN" in mark else "warn"
