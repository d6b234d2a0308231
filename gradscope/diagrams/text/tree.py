"""Groups → the rows of a table: a tree by module, its figures, bars, and frontiers in words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from gradscope.diagrams.graph.flow import MISSING, NONFINITE, ZERO, Flow
from gradscope.diagrams.graph.groups import Group, shown
from gradscope.diagrams.graph.names import label, operation, sizes
from gradscope.diagrams.graph.view import GraphView
from gradscope.diagrams.text.leads import Row, leads
from gradscope.typeset.bars import log_bars
from gradscope.typeset.numbers import count, number, size
from gradscope.typeset.tables import Heading, Table, of_columns, plan
from gradscope.typeset.text import plain

ABSENT = "–"
LEADS = "leads to"
_WORDS = {ZERO: "zero", MISSING: "missing", NONFINITE: "NaN/Inf"}
_ROW = "n equal blocks in a row, each leads to the next"
_SIDE = "n equal blocks between which no way leads; shapes from the least to the largest"
_FOLD = (
    "its figures are of all of them, its gradients from the least to the largest, "
    "and rows below it are of the block nearest the start"
)


def rows(root: Group, is_open: Callable[[Group], bool]) -> list[Row]:
    """What a reader sees, in order; the outermost group has no row."""
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
    """The tree as a table whose columns go by priority where a terminal is narrow."""
    lines = rows(root, is_open)
    marks = [_note(row, flow) for row in lines]
    by_bytes = view.by == "saved"
    name = "module" if all(row.operation is None for row in lines) else "module or operation"
    columns = [
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
    made = of_columns("by module", columns, list(map(_tone, marks)))
    legend = tuple(_legend(lines, made, view, start))
    return replace(made, caption=f"nearest to {start} first", legend=legend)


def _legend(lines: Sequence[Row], made: Table, view: GraphView, start: str) -> Iterator[str]:
    """What needs a word, as far as it is shown."""
    folds = [row.part for row in lines if isinstance(row.part, Group) and row.part.times > 1]
    fold = _FOLD.replace("the start", start)
    if any(not one.parallel for one in folds):
        yield f"×n: {_ROW}; {fold}"
    if any(one.parallel for one in folds):
        yield f"×n, side by side: {_SIDE}; {fold}"
    hidden = plan(made, view.width).hidden
    there = {heading.key for heading in made.columns} - set(hidden)
    if LEADS in there:
        yield f"{LEADS}: where not just to the next row; leaves with their shapes"
    if "log scale" in there:
        yield f"log scale: of {'saved' if view.by == 'saved' else 'grad'}"
    if any(isinstance(row.part, Group) and not row.is_open for row in lines):
        yield "more: --depth N, --expand PATTERN for some operations, --full for all"


def gradient(norm: float | None, nonfinite: int) -> str:
    """A gradient's norm; how many elements are NaN or Inf where some are."""
    if nonfinite:
        return f"{count(nonfinite)} NaN/Inf"
    return ABSENT if norm is None else number(norm)


def saved(n: int | None) -> str:
    """Bytes; what could not be read is not 0."""
    return ABSENT if n is None else size(n)


def mark_words(mark: str) -> str:
    """A frontier in words."""
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
    """Where a gradient first is lost: at this row, or upstream of it if its parts are not shown."""
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
