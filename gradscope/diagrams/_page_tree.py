"""The groups as the page opens them: a fold into its members, a long row of parts into short ones.

A group with hundreds of parts could never be opened on a screen; rows of them can. A picture, in
which nothing can be opened, shows such rows as boxes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from gradscope.diagrams._flow import Flow
from gradscope.diagrams._groups import Group, below, operations_below
from gradscope.records.graph import GraphNode
from gradscope.typeset.numbers import count

#: A group with more parts than this is cut into rows of parts.
LONG = 120
#: At most so many rows.
ROWS = 40


@dataclass(frozen=True, slots=True)
class Tree:
    """Groups, outer ones before inner ones; the place of the one around each (-1 for the first).

    ``parts`` has what each shows when it is opened.
    """

    groups: list[Group] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    parts: list[list[Group | int]] = field(default_factory=list)


def tree(root: Group, known: Flow, most: int | None) -> Tree:
    """All groups, or with ``most`` those nearest to the root."""
    found = Tree([root], [-1])
    for i, group in enumerate(found.groups):  # grows while it is read
        parts = rows(group, known)
        found.parts.append(parts)
        inner = [part for part in parts if isinstance(part, Group)]
        if most is None or len(found.groups) + len(inner) <= most:
            found.groups.extend(inner)
            found.parents.extend([i] * len(inner))
    return found


def rows(group: Group, known: Flow) -> list[Group | int]:
    """A group's members or parts; where they are many, groups of them."""
    parts: list[Group | int] = [*group.members] if group.members else group.parts
    n = len(parts)
    if n <= LONG:
        return parts
    # As equal as can be on every level: 7,505 parts are 20 rows of 20 of 20.
    levels = math.ceil(math.log(n, ROWS))
    length = math.ceil(n ** ((levels - 1) / levels))
    return [_row(group, parts[i : i + length], i, known) for i in range(0, n, length)]


def _row(group: Group, parts: list[Group | int], start: int, known: Flow) -> Group:
    labels = [part.label for part in parts if isinstance(part, Group)]
    label = f"parts {count(start + 1)} … {count(start + len(parts))}"
    if len(labels) == len(parts):
        label = f"{labels[0]} … {labels[-1]}"
    row = Group(f"{group.key}/{start}…{start + len(parts) - 1}", label, parent=group, parts=parts)
    first = parts[0]
    row.type = group.type if group.members else None
    # What enters a row is what enters its first part.
    row.grad_norm = first.grad_norm if isinstance(first, Group) else known.nodes[first].grad_norm
    row.parameters = sum(part.parameters for part in parts if isinstance(part, Group))
    own = [known.nodes[id] for id in operations_below(row)]
    row.ops = len(own)
    row.nonfinite = sum(node.grad_nonfinite or 0 for node in own)
    row.saved_bytes = saved(own)
    row.within = _within(parts, known)
    return row


def _within(parts: list[Group | int], known: Flow) -> tuple[str, ...]:
    """What first happens to the gradient at or in any of the parts."""
    found: set[str | None] = set()
    for part in parts:
        if isinstance(part, Group):
            found |= {part.mark, *part.within}
        else:
            found.add(known.marks.get(part))
            own = (leaf for leaf in known.leaves.get(part, ()) if known.home[leaf] == part)
            found |= {known.marks.get(leaf) for leaf in own}
    return tuple(sorted(mark for mark in found if mark))


def shorten(root: Group, known: Flow) -> None:
    """Cut every long row of modules for good; what ``--expand`` names stays as it is."""
    groups = list(below(root))
    for group in groups:  # grows while it is read: a long row may be cut into long ones
        held = any(True for _ in group.groups())
        if held and not group.members and not group.expanded:
            parts = rows(group, known)
            if parts is not group.parts:
                group.parts = parts
                groups += group.groups()
    for group in reversed(groups):
        if group.members:  # its parts are those of the first
            group.parts = group.members[0].parts


def saved(nodes: list[GraphNode]) -> int | None:
    """Bytes that they keep, each storage once; None where none of them could be read."""
    readable = [node for node in nodes if node.saved_bytes is not None]
    storages = {tensor.storage: tensor.bytes for node in readable for tensor in node.saved}
    untold = sum(node.saved_bytes or 0 for node in readable if not node.saved)
    return sum(storages.values()) + untold if readable else None
