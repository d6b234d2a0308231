"""Equal siblings in a row become one group that stands for all of them."""

from __future__ import annotations

import re

from gradscope.diagrams._flow import Flow
from gradscope.diagrams._group import Group, below

Signature = tuple[object, ...]


class _Structure:
    """Every group's operations as a slice of one list, in which equal groups read the same."""

    def __init__(self, root: Group, known: Flow) -> None:
        self._known = known
        self._tokens: list[Group | int | None] = []
        self._spans: dict[int, tuple[int, int]] = {}
        self._place: dict[int, int] = {}
        stack: list[tuple[Group, bool] | int] = [(root, True)]
        while stack:
            item = stack.pop()
            if isinstance(item, int):
                self._place[item] = len(self._tokens)
                self._tokens.append(item)
                continue
            group, entering = item
            if not entering:
                self._tokens.append(None)
                self._spans[id(group)] = (self._spans[id(group)][0], len(self._tokens))
                continue
            self._spans[id(group)] = (len(self._tokens), 0)
            self._tokens.append(group)
            stack.append((group, False))
            stack += [(p, True) if isinstance(p, Group) else p for p in reversed(group.parts)]

    def brief(self, group: Group) -> Signature:
        """What equal groups have in common at first sight."""
        start, end = self._spans[id(group)]
        stem = re.sub(r"\d+", "0", group.label)
        return (stem, group.type, group.name is None, group.expanded, end - start)

    def signature(self, group: Group) -> Signature:
        """Types, operations, their wiring inside the group and the shapes of their leaves."""
        start, end = self._spans[id(group)]
        said: list[object] = []
        for token in self._tokens[start:end]:
            if token is None:
                said.append(None)
            elif isinstance(token, Group):
                stem = token.label if token is not group else ""
                said.append((stem, token.type, token.expanded))
            else:
                said.append(self._operation(token, start, end))
        return tuple(said)

    def _operation(self, id: int, start: int, end: int) -> Signature:
        nodes, here = self._known.nodes, self._place[id]
        wires: list[object] = [nodes[id].op]
        for child in self._known.onward[id]:
            leaf = nodes[child]
            if leaf.kind != "function":
                wires.append((leaf.kind, leaf.shape))
            else:
                place = self._place[child]
                wires.append(place - here if start <= place < end else None)
        return tuple(wires)


def fold(root: Group, known: Flow) -> None:
    """Fold every run of equal siblings, and a container that holds nothing but one run."""
    structure = _Structure(root, known)
    for group in reversed(list(below(root))):
        groups = list(group.groups())
        runs = _runs(groups, structure)
        if len(runs) < len(groups):
            _replace(group, runs)


def _runs(groups: list[Group], structure: _Structure) -> list[list[Group]]:
    briefs = [structure.brief(group) for group in groups]
    runs: list[list[Group]] = []
    last: Signature | None = None
    for i, group in enumerate(groups):
        alone = briefs[i] not in (briefs[i - 1] if i else None, *briefs[i + 1 : i + 2])
        signature = None if alone else structure.signature(group)
        if signature is not None and signature == last and briefs[i] == briefs[i - 1]:
            runs[-1].append(group)
        else:
            runs.append([group])
        last = signature
    return runs


def _replace(group: Group, runs: list[list[Group]]) -> None:
    firsts = {id(run[0]): run for run in runs}
    parts: list[Group | int] = []
    for part in group.parts:
        if isinstance(part, int):
            parts.append(part)
        elif id(part) in firsts:
            run = firsts[id(part)]
            parts.append(part if len(run) == 1 else _folded(group, run))
    group.parts = parts
    only = parts[0] if len(parts) == 1 else None
    if isinstance(only, Group) and only.times > 1 and group.name and not group.members:
        group.type, group.times, group.members = only.type, only.times, only.members
        group.parts = only.parts
        for member in group.members:
            member.parent = group


def _folded(group: Group, run: list[Group]) -> Group:
    first, last = run[0], run[-1]
    outer = sorted((first, last), key=lambda one: _numbers(one.label))
    ends = [outer[0].label, outer[1].label.removeprefix(f"{outer[0].label.split(' #')[0]} ")]
    label = (", " if len(run) == 2 else " … ").join(ends)
    whole = Group(
        f"{first.key}…{last.key.rsplit('/', 1)[-1]}",
        label,
        first.name,
        first.type,
        group,
        first.parts,
        len(run),
        run,
        first.expanded,
    )
    for member in run:
        member.parent = whole
    return whole


def _numbers(label: str) -> list[int]:
    return [int(digits) for digits in re.findall(r"\d{1,18}", label)]
