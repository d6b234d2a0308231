"""Long rows of parts cut into short ones.

A group with hundreds of parts could never be opened on a screen; rows of them can. A picture, in
which nothing can be opened, shows such rows as boxes.
"""

from __future__ import annotations

import math

from gradscope.diagrams.graph.figures import saved_bytes
from gradscope.diagrams.graph.flow import Flow
from gradscope.diagrams.graph.groups import Group, below, operations_below
from gradscope.typeset.numbers import count

#: A group with more parts than this is cut into rows of parts.
LONG = 120
#: At most so many rows.
ROWS = 40


def rows(group: Group, flow: Flow) -> list[Group | int]:
    """A group's members or parts; where they are many, groups of them."""
    parts: list[Group | int] = [*group.members] if group.members else group.parts
    n = len(parts)
    if n <= LONG:
        return parts
    # As equal as can be on every level: 7,505 parts are 20 rows of 20 of 20.
    levels = math.ceil(math.log(n, ROWS))
    length = math.ceil(n ** ((levels - 1) / levels))
    return [_row(group, parts[i : i + length], i, flow) for i in range(0, n, length)]


def _row(group: Group, parts: list[Group | int], start: int, flow: Flow) -> Group:
    labels = [part.label for part in parts if isinstance(part, Group)]
    label = f"parts {count(start + 1)} … {count(start + len(parts))}"
    if len(labels) == len(parts):
        label = f"{labels[0]} … {labels[-1]}"
    row = Group(f"{group.key}/{start}…{start + len(parts) - 1}", label, parent=group, parts=parts)
    first = parts[0]
    row.type = group.type if group.members else None
    # What enters a row is what enters its first part.
    row.grad_norm = first.grad_norm if isinstance(first, Group) else flow.nodes[first].grad_norm
    row.parameters = sum(part.parameters for part in parts if isinstance(part, Group))
    own = [flow.nodes[id] for id in operations_below(row)]
    row.ops = len(own)
    row.nonfinite = sum(node.grad_nonfinite or 0 for node in own)
    row.saved_bytes = saved_bytes(own)
    row.within = _within(parts, flow)
    return row


def _within(parts: list[Group | int], flow: Flow) -> tuple[str, ...]:
    """What first happens to the gradient at or in any of the parts."""
    found: set[str | None] = set()
    for part in parts:
        if isinstance(part, Group):
            found |= {part.mark, *part.within}
        else:
            found.add(flow.marks.get(part))
            own = (leaf for leaf in flow.leaves.get(part, ()) if flow.home[leaf] == part)
            found |= {flow.marks.get(leaf) for leaf in own}
    return tuple(sorted(mark for mark in found if mark))


def shorten(root: Group, flow: Flow) -> None:
    """Cut every long row of modules for good; what ``--expand`` names stays as it is."""
    groups = list(below(root))
    for group in groups:  # grows while it is read: a long row may be cut into long ones
        held = any(True for _ in group.groups())
        if held and not group.members and not group.expanded:
            parts = rows(group, flow)
            if parts is not group.parts:
                group.parts = parts
                groups += group.groups()
    for group in reversed(groups):
        if group.members:  # its parts are those of the first
            group.parts = group.members[0].parts
