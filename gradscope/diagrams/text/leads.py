"""Targets of each row of the tree: leaves by name and shape, other rows by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from gradscope.diagrams.graph.flow import Flow
from gradscope.diagrams.graph.groups import Group, operations_below
from gradscope.diagrams.graph.names import dotted, label, operation
from gradscope.reporters.labels import some_names

#: An operation that joins dozens would make the table as wide.
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
    """For each row where its edges lead, unless that is only to the row below it.

    A closed group's leaves are counted elsewhere; an open one's rows speak for it. Names within
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
    """For each row the next that is no heading of others."""
    found: list[Row | None] = []
    upcoming: Row | None = None
    for row in reversed(lines):
        found.append(upcoming)
        if not row.is_open or row.only is not None:
            upcoming = row
    return found[::-1]


def _others(lines: Sequence[Row]) -> dict[int, Group]:
    """For the operations of an open fold's further members, which one they are in."""
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
    """A row's name as another says it: short beside it."""
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
    """A dotted name without what all in the same module share."""
    module = (around.members[0] if around.members else around).name
    return name.removeprefix(f"{module}.") if module else name


def _listed(targets: Counter[str], closed: bool) -> str:
    texts = [f"{text} ×{n}" if n > 1 and not closed else text for text, n in targets.items()]
    return some_names(texts, _NAMED)


def _key(part: Group | int | None) -> int:
    """Ids are from 0 on, -1 stands for leaves."""
    if part is None:
        return -2
    return part if isinstance(part, int) else -id(part) - 3
