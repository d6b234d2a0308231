"""Which box shows each operation, where groups are open and closed and repeats are drawn once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from gradscope.diagrams.graph.flow import Flow
from gradscope.diagrams.graph.groups import Group, below, operations_below, shown

#: A parameter that several boxes use is a box itself, unless its arrows would cover the drawing.
_SHARED = 6
#: Where a graph has more inputs, those that one box uses are in it.
_INPUTS = 40


@dataclass(slots=True)
class Assignment:
    """What becomes of the graph: boxes and frames, each operation's box, the repeats it is in."""

    shown: list[tuple[Group | int, int | None]] = field(default_factory=list)
    clusters: list[tuple[Group, int | None, int]] = field(default_factory=list)
    where: dict[int, int] = field(default_factory=dict)
    repeats: dict[int, tuple[tuple[str, int], ...]] = field(default_factory=dict)
    leaves: dict[int, list[int]] = field(default_factory=dict)


def assigned(root: Group, is_open: Callable[[Group], bool]) -> Assignment:
    """Which groups are frames, which are boxes, and which box shows each operation."""
    assignment = Assignment()
    todo: list[tuple[Group | int, int | None, int]] = [(p, None, 0) for p in reversed(root.parts)]
    while todo:
        part, cluster, depth = todo.pop()
        if isinstance(part, Group) and is_open(part):
            assignment.clusters.append((part, cluster, depth))
            inside = len(assignment.clusters) - 1
            todo += [(p, inside, depth + 1) for p in reversed(part.parts)]
        else:
            assignment.shown.append((part, cluster))
    place = {id(p) if isinstance(p, Group) else p: i for i, (p, _) in enumerate(assignment.shown)}
    for operation, stands in shown(root, is_open).items():
        assignment.where[operation] = place[id(stands) if isinstance(stands, Group) else stands]
    for group in below(root):
        for i, member in enumerate(group.members):
            for operation in operations_below(member):
                before = assignment.repeats.get(operation, ())
                assignment.repeats[operation] = (*before, (group.key, i))
    return assignment


def place_leaves(assignment: Assignment, flow: Flow) -> None:
    """Leaves are in the box that uses them; shared ones and inputs get their own box."""
    users: dict[int, list[int]] = {}
    for operation, leaves in flow.leaves.items():
        for leaf in leaves:
            users.setdefault(leaf, []).append(operation)
    inputs = sum(1 for leaf in users if flow.nodes[leaf].kind == "input")
    for leaf, operations in users.items():
        separate = flow.nodes[leaf].kind == "input" and inputs <= _INPUTS
        boxes = {assignment.where[operation] for operation in operations}
        if separate or 2 <= len(boxes) <= _SHARED:
            assignment.where[leaf] = len(assignment.shown)
            assignment.shown.append((leaf, None))
            continue
        firsts = (n for n in operations if not any(i for _, i in assignment.repeats.get(n, ())))
        for box in dict.fromkeys(assignment.where[operation] for operation in firsts):
            assignment.leaves.setdefault(box, []).append(leaf)


def arrows(assignment: Assignment, flow: Flow) -> dict[tuple[int, int], int]:
    """Arrows between boxes, several in one with their number; none inside a box."""
    counts: Counter[tuple[int, int]] = Counter()
    for tail in flow.order:
        for head in flow.onward[tail]:
            ends = assignment.where.get(tail), assignment.where.get(head)
            # What stays inside a closed group is in its count of operations.
            if None in ends or ends[0] == ends[1] or _repeated(assignment, tail, head):
                continue
            counts[ends] += 1  # type: ignore[index]
    return counts


def _repeated(assignment: Assignment, tail: int, head: int) -> bool:
    """Does the arrow lead from repeat to repeat, or does the first repeat show it already?"""
    ours, theirs = dict(assignment.repeats.get(tail, ())), dict(assignment.repeats.get(head, ()))
    return any(key in theirs and (place != theirs[key] or place > 0) for key, place in ours.items())
