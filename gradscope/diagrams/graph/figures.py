"""Computes the figures of groups: counts, saved bytes, the gradient that enters, frontiers."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence

from gradscope.diagrams.graph.flow import MISSING, NONFINITE, ZERO, Flow
from gradscope.diagrams.graph.grouping import Group, below
from gradscope.records.graph import GraphNode


def fill(root: Group, flow: Flow, homes: dict[int, Group]) -> None:
    """Compute every group's figures; linear in nodes times the depth of modules."""
    order = list(below(root))
    _count(order, flow, homes)
    _saved(order, flow, homes)
    _enter(flow, homes)
    for group in reversed(order):
        if group.members:
            _range(group)
    _within(order, flow, homes)


def _upwards(group: Group | None) -> Iterator[Group]:
    while group is not None:
        yield group
        group = group.parent


def _count(order: list[Group], flow: Flow, homes: dict[int, Group]) -> None:
    for id, group in homes.items():
        if not flow.is_leaf(id):
            group.ops += 1
    leaves = [(leaf, homes[op]) for leaf, op in flow.home.items()]
    leaves += [(id, group) for id, group in homes.items() if flow.is_leaf(id)]
    for leaf, group in leaves:
        node = flow.nodes[leaf]
        group.leaves += 1
        if node.kind == "parameter" and node.shape is not None:
            group.parameters += math.prod(node.shape)
    for group in reversed(order):
        if group.parent is not None:
            group.parent.ops += group.ops
            group.parent.leaves += group.leaves
            group.parent.parameters += group.parameters


def _saved(order: list[Group], flow: Flow, homes: dict[int, Group]) -> None:
    """Sum each storage once in every group that holds it; None if nothing could be read."""
    storages: dict[int, tuple[int, dict[int, Group]]] = {}
    for id_, group in homes.items():
        node = flow.nodes[id_]
        if node.saved_bytes is None:
            continue
        # A record without the list of tensors still has the sum.
        group.saved_bytes = (group.saved_bytes or 0) + (0 if node.saved else node.saved_bytes)
        for tensor in node.saved:
            storages.setdefault(tensor.storage, (tensor.bytes, {}))[1][id(group)] = group
    for group in reversed(order):
        if group.parent is not None and group.saved_bytes is not None:
            group.parent.saved_bytes = (group.parent.saved_bytes or 0) + group.saved_bytes
    for size, groups in storages.values():
        counted: set[int] = set()
        for group in groups.values():
            for one in _upwards(group):
                if id(one) in counted:
                    break
                counted.add(id(one))
                one.saved_bytes = (one.saved_bytes or 0) + size


def entries(flow: Flow, homes: dict[int, Group]) -> dict[int, tuple[Group, list[int]]]:
    """Return for each group, by ``id``, its operations with consumers outside of it, and the
    root."""
    depths: dict[int, int] = {}
    for group in dict.fromkeys(homes.values()):
        for level, one in enumerate(reversed(list(_upwards(group)))):
            depths[id(one)] = level
    found: dict[int, tuple[Group, list[int]]] = {}
    for id_, group in homes.items():
        outside = depths[id(group)]
        if id_ == flow.root or id_ not in flow.consumers:
            outside = -1
        for consumer in flow.consumers.get(id_, ()):
            outside = min(outside, _shared(homes[consumer], group, depths))
        for one in _upwards(group):
            if depths[id(one)] <= outside:
                break
            found.setdefault(id(one), (one, []))[1].append(id_)
    return found


def _enter(flow: Flow, homes: dict[int, Group]) -> None:
    """Set the gradient that enters each group."""
    for group, ids in entries(flow, homes).values():
        nodes = [flow.nodes[id_] for id_ in ids]
        norms = [node.grad_norm for node in nodes if node.grad_norm is not None]
        # No infinity, which would read as a broken gradient, where the sum alone overflows.
        group.grad_norm = min(math.hypot(*norms), sys.float_info.max) if norms else None
        group.nonfinite = sum(node.grad_nonfinite for node in nodes)
        marks = {flow.marks.get(id_) for id_ in ids}
        state = NONFINITE if group.nonfinite else _state(group.grad_norm)
        group.mark = state if state in marks else None


def _state(norm: float | None) -> str | None:
    if norm is None:
        return MISSING
    return ZERO if norm == 0 else None


def _shared(one: Group, other: Group, depths: dict[int, int]) -> int:
    """Return the depth of the innermost group around both."""
    while one is not other:
        deeper = depths[id(one)] - depths[id(other)]
        if deeper >= 0 and one.parent is not None:
            one = one.parent
        if deeper <= 0 and other.parent is not None:
            other = other.parent
    return depths[id(one)]


def _range(group: Group) -> None:
    """Show a fold as its first member's gradient, and the range over all."""
    first = group.members[0]
    norms = [one.grad_norm for one in group.members if one.grad_norm is not None]
    group.grad_norm, group.nonfinite, group.mark = first.grad_norm, first.nonfinite, first.mark
    if norms:
        group.grad_low, group.grad_high = min(norms), max(norms)


def _within(order: list[Group], flow: Flow, homes: dict[int, Group]) -> None:
    """Note the marks inside each group, except its own."""
    inside: dict[int, set[str]] = {id(group): set() for group in order}
    for place, mark in flow.marks.items():
        inside[id(homes[flow.home.get(place, place)])].add(mark)
    for group in reversed(order):
        if group.parent is not None:
            inside[id(group.parent)] |= inside[id(group)]
        group.within = tuple(sorted(inside[id(group)] - {group.mark or ""}))


def saved_bytes(nodes: Sequence[GraphNode]) -> int | None:
    """Return the bytes that nodes keep, each storage once; None if none could be read."""
    readable = [node for node in nodes if node.saved_bytes is not None]
    storages = {tensor.storage: tensor.bytes for node in readable for tensor in node.saved}
    # A record without the list of tensors still has the sum.
    unlisted = sum(node.saved_bytes or 0 for node in readable if not node.saved)
    return sum(storages.values()) + unlisted if readable else None
