"""Folds equal sibling groups into one group, if each leads to the next or if they are parallel.

Parallel groups may differ in shapes, such as the experts of a mixture.
"""

from __future__ import annotations

import re

from gradscope.diagrams.graph.flow import Flow, Span
from gradscope.diagrams.graph.grouping import Group, below


def fold(root: Group, flow: Flow) -> None:
    """Fold every sequence of equal siblings, and a container that holds only such a sequence.

    Siblings fold if each leads to the next and their shapes are equal, or if no path leads from one
    to another; then ``known.spans`` gets the ranges of shapes.
    """
    flow.spans.clear()
    structure = Structure(root, flow)
    for group in reversed(list(below(root))):
        groups = list(group.groups())
        runs = [part for run in _runs(groups, structure) for part in _parts(run, structure)]
        if len(runs) < len(groups):
            _replace(group, runs, structure)


def _runs(groups: list[Group], structure: Structure) -> list[list[Group]]:
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


def _parts(run: list[Group], structure: Structure) -> list[list[Group]]:
    """Split a run of equal groups into chains; all stay together if no path leads from one to
    another."""
    if len(run) == 1:
        return [run]
    shapes = [structure.shapes(group) for group in run]
    chains = [[run[0]]]
    for i, group in enumerate(run[1:], 1):
        if shapes[i] == shapes[i - 1] and structure.leads(run[i - 1], group):
            chains[-1].append(group)
        else:
            chains.append([group])
    if len(chains) == len(run) and structure.independent(run):
        structure.widen(run)
        return [run]
    return chains


def _replace(group: Group, runs: list[list[Group]], structure: Structure) -> None:
    firsts = {id(run[0]): run for run in runs}
    parts: list[Group | int] = []
    for part in group.parts:
        if isinstance(part, int):
            parts.append(part)
        elif id(part) in firsts:
            run = firsts[id(part)]
            parts.append(part if len(run) == 1 else _folded(group, run, structure))
    group.parts = parts
    only = parts[0] if len(parts) == 1 else None
    if isinstance(only, Group) and only.times > 1 and group.name and not group.members:
        group.type, group.times, group.members = only.type, only.times, only.members
        group.parts, group.parallel = only.parts, only.parallel
        for member in group.members:
            member.parent = group


def _folded(group: Group, run: list[Group], structure: Structure) -> Group:
    first, last = run[0], run[-1]
    outer = sorted((first, last), key=lambda one: _numbers(one.label))
    ends = [outer[0].label, outer[1].label.removeprefix(f"{outer[0].label.split(' #')[0]} ")]
    label = (", " if len(run) == 2 else " … ").join(ends)
    full = Group(
        f"{first.key}…{last.key.rsplit('/', 1)[-1]}",
        label,
        first.name,
        first.type,
        group,
        first.parts,
        len(run),
        run,
        not structure.leads(run[0], run[1]),
        first.expanded,
    )
    for member in run:
        member.parent = full
    return full


def _numbers(label: str) -> list[int]:
    return [int(digits) for digits in re.findall(r"\d{1,18}", label)]


Signature = tuple[object, ...]


class Structure:
    """The operations of every group as a slice of one list; slices of equal groups have equal
    order."""

    def __init__(self, root: Group, flow: Flow) -> None:
        self._known = flow
        self._tokens: list[Group | int | None] = []
        self._spans: dict[int, tuple[int, int]] = {}
        self._place: dict[int, int] = {}
        self._ranks = {id: i for i, id in enumerate(flow.order)}
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
        """Return a cheap signature; equal groups have equal ones."""
        start, end = self._spans[id(group)]
        stem = re.sub(r"\d+", "0", group.label)
        return (stem, group.type, group.name is None, group.expanded, end - start)

    def signature(self, group: Group) -> Signature:
        """Return a signature of types, operations, edges inside the group and shapes of leaves."""
        start, end = self._spans[id(group)]
        tokens: list[object] = []
        for token in self._tokens[start:end]:
            if token is None:
                tokens.append(None)
            elif isinstance(token, Group):
                stem = token.label if token is not group else ""
                tokens.append((stem, token.type, token.expanded))
            else:
                tokens.append(self._operation(token, start, end))
        return tuple(tokens)

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

    def _ids(self, group: Group) -> list[int]:
        start, end = self._spans[id(group)]
        return [token for token in self._tokens[start:end] if isinstance(token, int)]

    def shapes(self, group: Group) -> list[Span | None]:
        """Return the shape of each of its operations, or the range over the folded ones."""
        return [span(self._known, id) for id in self._ids(group)]

    def leads(self, one: Group, other: Group) -> bool:
        """Return True if an operation of one group leads directly to an operation of the other."""
        start, end = self._spans[id(other)]
        children = (child for id in self._ids(one) for child in self._known.onward[id])
        return any(start <= self._place.get(child, -1) < end for child in children)

    def independent(self, groups: list[Group]) -> bool:
        """Return True if no path leads from one of the groups to another."""
        home = {id: i for i, group in enumerate(groups) for id in self._ids(group)}
        last = max((self._ranks[id] for id in home), default=0)
        todo: list[int] = []
        for id, i in home.items():
            for child in self._known.onward[id]:
                if child not in home:
                    todo.append(child)
                elif home[child] != i:
                    return False
        seen = set(todo)
        while todo:  # beyond the last of them no path leads back
            for child in self._known.onward[todo.pop()]:
                if child in home:
                    return False
                if child not in seen and self._ranks[child] < last:
                    seen.add(child)
                    todo.append(child)
        return True

    def widen(self, groups: list[Group]) -> None:
        """Set the range of shapes over all groups for the operations of the first group."""
        for ids in zip(*map(self._ids, groups), strict=True):
            found = [span(self._known, id) for id in ids]
            if any(one != found[0] for one in found):
                self._known.spans[ids[0]] = _joined(found)


def span(flow: Flow, id: int) -> Span | None:
    """Return an operation's shape as (smallest, largest) of each dimension, over all folded
    ones."""
    if id in flow.spans:
        return flow.spans[id]
    sizes = flow.nodes[id].shape
    return None if sizes is None else tuple((n, n) for n in sizes)


def _joined(spans: list[Span | None]) -> Span | None:
    """Return the range over several shapes; None if they have different numbers of dimensions."""
    full = [one for one in spans if one is not None]
    if len(full) < len(spans) or len({len(one) for one in full}) > 1:
        return None
    return tuple(
        (min(low for low, _ in ends), max(high for _, high in ends))
        for ends in zip(*full, strict=True)
    )
