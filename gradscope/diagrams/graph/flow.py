"""Prepares an AutogradGraph for diagrams: order, leaves beside their operation, marks, paths.

Edges into a reentrant checkpoint lead directly into the graph that it built.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gradscope.records.graph import AutogradGraph, GraphNode

#: Marks, in the words of the records: where gradients first are zero, absent, or not finite.
ZERO, MISSING, NONFINITE = "zero", "missing", "nonfinite"

#: The least and the most of each dimension of a shape.
Span = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Flow:
    """Edges of the graph by node id.

    ``order`` is topological, and equal blocks have their operations in equal order. ``onward`` is a
    multiset, with one entry per edge. ``leaves`` has the leaves of each operation once; ``home``
    has the first operation that reaches a leaf. ``spans`` has the ranges of shapes of an operation
    that represents others; None without a common range.
    """

    root: int | None
    nodes: dict[int, GraphNode]
    onward: dict[int, tuple[int, ...]]
    order: list[int] = field(default_factory=list)
    consumers: dict[int, list[int]] = field(default_factory=dict)
    leaves: dict[int, tuple[int, ...]] = field(default_factory=dict)
    home: dict[int, int] = field(default_factory=dict)
    marks: dict[int, str] = field(default_factory=dict)
    spans: dict[int, Span | None] = field(default_factory=dict)

    def is_leaf(self, id: int) -> bool:
        """Return True if a node is a parameter or an input."""
        return self.nodes[id].kind != "function"


def read_flow(graph: AutogradGraph) -> Flow:
    """Read the graph once; linear in nodes and edges."""
    nodes = {node.id: node for node in graph.nodes}
    onward = {
        id: tuple(edge[0] for edge in node.inner or node.to if edge and edge[0] in nodes)
        for id, node in nodes.items()
    }
    # Leaves of a checkpoint's inner graph that lead on.
    leaves = {id for id, n in nodes.items() if n.kind != "function" or n.op == "AccumulateGrad"}
    passed = {id for id in leaves if onward[id]}
    passed -= {graph.root}
    if passed:
        onward = _joined(onward, passed)
        nodes = {id: node for id, node in nodes.items() if id not in passed}
    found = Flow(graph.root, nodes, onward)
    _sort(found)
    for id in found.order:
        for child in found.onward[id]:
            found.consumers.setdefault(child, []).append(id)
        if not found.is_leaf(id):
            own = tuple(dict.fromkeys(c for c in found.onward[id] if found.is_leaf(c)))
            if own:
                found.leaves[id] = own
                for leaf in own:
                    found.home.setdefault(leaf, id)
    if not graph.complete:  # a node that backward never reached is no frontier
        return found
    dead = _dead(found)
    for id in found.order:
        mark = _mark(found, id, dead)
        if mark:
            found.marks[id] = mark
    if graph.part is not None and graph.start != "loss":  # the part before its root is unknown
        found.marks.pop(found.root, None)  # type: ignore[arg-type]
    return found


def _joined(onward: dict[int, tuple[int, ...]], passed: set[int]) -> dict[int, tuple[int, ...]]:
    """Return edges without the leaves that a checkpoint's inner graph only passes through."""
    joined: dict[int, tuple[int, ...]] = {}
    for id, children in onward.items():
        if id in passed:
            continue
        if passed.isdisjoint(children):
            joined[id] = children
            continue
        ends: list[int] = []
        seen: set[int] = set()  # no leaf twice: a damaged file may lead in a circle
        waiting = list(reversed(children))
        while waiting:
            child = waiting.pop()
            if child not in passed:
                ends.append(child)
            elif child not in seen:
                seen.add(child)
                waiting += reversed(onward[child])
        joined[id] = tuple(ends)
    return joined


def _sort(found: Flow) -> None:
    """Sort in reverse postorder; a node's first edge is followed last, so that its branch comes
    first."""
    starts = [id for id in (found.root,) if id is not None and id in found.nodes]
    found.order.extend(_postorder(found, starts))
    if len(found.order) < len(found.nodes):  # no engine leaves any, a file may
        reached = set(found.order)
        others = [id for id in reversed(found.nodes) if id not in reached]
        found.order[:] = _postorder(found, [*others, *starts])
    found.order.reverse()


def _postorder(found: Flow, starts: list[int]) -> list[int]:
    entered: set[int] = set()
    done: set[int] = set()
    post: list[int] = []
    for start in starts:
        stack = [start]
        while stack:
            id = stack[-1]
            if id not in entered:
                entered.add(id)
                stack += [child for child in found.onward[id] if child not in entered]
                continue
            stack.pop()
            if id not in done:
                done.add(id)
                post.append(id)
    return post


def _dead(found: Flow) -> set[int]:
    """Return leaves whose full gradient is zero, and the zero gradients that lead to them.

    Elsewhere a zero is one part of a gradient, such as a recurrent weight's in the first time step.
    """
    dead: set[int] = set()
    for id in reversed(found.order):
        node = found.nodes[id]
        if node.grad_norm != 0 or node.grad_nonfinite:
            continue
        onward = found.onward[id]
        if not onward or not dead.isdisjoint(onward):
            dead.add(id)
    return dead


def _mark(found: Flow, id: int, dead: set[int]) -> str | None:
    """Return the mark of the node where a gradient is first lost; its consumers had a better
    one.
    """
    node = found.nodes[id]
    before = [found.nodes[consumer] for consumer in found.consumers.get(id, ())]
    if node.grad_nonfinite:
        return None if any(c.grad_nonfinite for c in before) else NONFINITE
    if node.grad_norm is None:
        return MISSING if any(c.grad_norm is not None for c in before) else None
    if node.grad_norm == 0:
        lively = any(c.grad_norm or c.grad_nonfinite for c in before)
        return ZERO if id in dead and (lively or id == found.root) else None
    return None


@dataclass(frozen=True, slots=True)
class Route:
    """The shortest path, and the number of paths; lengths count operations, not leaves."""

    nodes: tuple[int, ...]
    count: int
    shortest: int
    longest: int


def routes(
    graph: AutogradGraph, sources: Iterable[int], target: int, flow: Flow | None = None
) -> Route | None:
    """Return the paths, in the direction of gradients, from the sources to the target; None without
    one.

    The count is exact for any number of paths: it follows the topological order. Parallel edges
    count separately.
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
    """Return the longest path from a node down to a leaf."""
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
    """Return all ids reachable from ``starts``, with these."""
    seen = set(starts)
    stack = list(seen)
    while stack:
        for other in edges.get(stack.pop(), ()):
            if other not in seen:
                seen.add(other)
                stack.append(other)
    return seen


def _counted(flow: Flow, starts: set[int], between: set[int], target: int) -> tuple[int, int]:
    """Return the number of paths to the target, and the operations on the longest."""
    counts = dict.fromkeys(starts & between, 1)
    lengths = {id: 0 if flow.is_leaf(id) else 1 for id in counts}
    for id in flow.order:
        if id not in between:
            continue
        # Counts of passed nodes are dropped: they grow with the depth of the network.
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
    """Search breadth first, so that the first path to the target is a shortest one."""
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
