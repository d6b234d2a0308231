"""The paths between two places of a graph: the shortest, how many, how long; the longest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gradscope.diagrams.graph.flow import Flow, read_flow
from gradscope.records.graph import AutogradGraph


@dataclass(frozen=True, slots=True)
class Route:
    """The shortest path, and how many there are; lengths count operations, not leaves."""

    nodes: tuple[int, ...]
    count: int
    shortest: int
    longest: int


def routes(
    graph: AutogradGraph, sources: Iterable[int], target: int, flow: Flow | None = None
) -> Route | None:
    """The paths in the direction of gradients from any of the sources to the target, if any.

    Exact for any number of paths: they are counted over the topological order, edges between the
    same two nodes separate.
    """
    flow = flow or read_flow(graph)
    starts = [id for id in dict.fromkeys(sources) if id in flow.nodes]
    ahead = reached(starts, flow.onward)
    if target not in ahead:
        return None
    between = ahead & reached([target], flow.consumers)
    count, longest = _counted(flow, set(starts), between, target)
    nodes = _shortest(flow, starts, target)
    shortest = sum(1 for id in nodes if not flow.is_leaf(id))
    return Route(tuple(nodes), count, shortest, longest)


def main_path(flow: Flow, start: int) -> list[int]:
    """The longest path from a node down to a leaf."""
    height: dict[int, int] = {}
    following: dict[int, int] = {}
    for id in reversed(flow.order):
        best = -1
        for child in flow.onward[id]:
            if height.get(child, -1) > best:
                best, following[id] = height[child], child
        height[id] = best + 1
    path = [start]
    while path[-1] in following and len(path) <= len(flow.nodes):
        path.append(following[path[-1]])
    return path


def reached(starts: Iterable[int], edges: Mapping[int, Iterable[int]]) -> set[int]:
    """Everything that the edges lead to from ``starts``, these included."""
    seen = set(starts)
    stack = list(seen)
    while stack:
        for other in edges.get(stack.pop(), ()):
            if other not in seen:
                seen.add(other)
                stack.append(other)
    return seen


def _counted(flow: Flow, starts: set[int], between: set[int], target: int) -> tuple[int, int]:
    """How many paths lead to the target, and the operations on the longest."""
    counts = dict.fromkeys(starts & between, 1)
    lengths = {id: 0 if flow.is_leaf(id) else 1 for id in counts}
    for id in flow.order:
        if id not in between:
            continue
        # What is passed is dropped: the numbers grow with the depth of the network.
        count = counts.get(id, 0) if id == target else counts.pop(id, 0)
        if id == target:
            break
        for child in flow.onward[id]:
            if child in between:
                counts[child] = counts.get(child, 0) + count
                step = lengths.get(id, 0) + (0 if flow.is_leaf(child) else 1)
                lengths[child] = max(lengths.get(child, 0), step)
    return counts.get(target, 1), lengths.get(target, 1)


def _shortest(flow: Flow, starts: list[int], target: int) -> list[int]:
    """Breadth first, so that the first way to the target is a shortest one."""
    before: dict[int, int | None] = dict.fromkeys(starts)
    level = starts
    while target not in before:
        upcoming: list[int] = []
        for id in level:
            for child in flow.onward[id]:
                if child not in before:
                    before[child] = id
                    upcoming.append(child)
        level = upcoming
    path: list[int] = []
    at: int | None = target
    while at is not None:
        path.append(at)
        at = before[at]
    return path[::-1]
