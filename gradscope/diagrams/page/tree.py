"""The groups as the page opens them: folds into their members, long rows into short ones."""

from __future__ import annotations

from dataclasses import dataclass, field

from gradscope.diagrams.graph.flow import Flow
from gradscope.diagrams.graph.groups import Group
from gradscope.diagrams.graph.rows import rows


@dataclass(frozen=True, slots=True)
class Tree:
    """Groups, outer ones before inner ones; the place of the one around each (-1 for the first).

    ``parts`` has what each shows when it is opened.
    """

    groups: list[Group] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    parts: list[list[Group | int]] = field(default_factory=list)


def tree(root: Group, flow: Flow, most: int | None) -> Tree:
    """All groups, or with ``most`` those nearest to the root."""
    found = Tree([root], [-1])
    for i, group in enumerate(found.groups):  # grows while it is read
        parts = rows(group, flow)
        found.parts.append(parts)
        inner = [part for part in parts if isinstance(part, Group)]
        if most is None or len(found.groups) + len(inner) <= most:
            found.groups.extend(inner)
            found.parents.extend([i] * len(inner))
    return found
