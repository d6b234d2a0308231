"""Names in a graph, and the paths between two of them: the shortest, how many, how long."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from gradscope.diagrams._figures import entries
from gradscope.diagrams._flow import Flow, flow
from gradscope.diagrams._grouping import tree
from gradscope.errors import GradscopeError, OptionError, did_you_mean
from gradscope.patterns import Named, Pattern
from gradscope.records import AutogradGraph


@dataclass(frozen=True, slots=True)
class Spot:
    """A place in the graph with the name by which it was asked for."""

    id: int
    name: str


@dataclass(frozen=True, slots=True)
class Route:
    """The shortest path, and how many there are; lengths count operations, not leaves."""

    nodes: tuple[int, ...]
    count: int
    shortest: int
    longest: int


def find(graph: AutogradGraph, word: str, known: Flow | None = None) -> list[int]:
    """The nodes of a name or pattern: the start, a parameter, an input, a module's entry.

    Empty where only parameters that are not in the graph have such a name (``absent``).

    Raises:
        OptionError: nothing in the graph or the model has such a name; the closest are named.
    """
    return [spot.id for spot in spots(graph, word, known)]


def spots(graph: AutogradGraph, word: str, known: Flow | None = None) -> list[Spot]:
    """As ``find``, with the name of each node. A module that ran n times has n places at least."""
    known = known or flow(graph)
    places = _places(graph, known)
    if word in places:
        return places[word]
    missing = absent(graph, word)
    hits = {name for name in places if name in _matching(word, graph, places)}
    found = [spot for name, some in places.items() if name in hits for spot in some]
    if not found and not missing:
        close = did_you_mean(word, [*places, *graph.names], count=3)
        some = ", ".join(list(places)[:6]) + (", …" if len(places) > 6 else "")
        raise OptionError(
            f"nothing in the graph is called `{word}`",
            help=close or f"names here are {some}: parameters, inputs, modules, the start",
        )
    return list(dict.fromkeys(found))


def absent(graph: AutogradGraph, word: str) -> list[str]:
    """The model's parameters with that name that are not in the graph."""
    inside = {node.name for node in graph.nodes if node.kind == "parameter"}
    outside = [name for name in graph.names if name not in inside]
    return [word] if word in outside else _matching(word, graph, outside)


def routes(
    graph: AutogradGraph, sources: Iterable[int], target: int, known: Flow | None = None
) -> Route | None:
    """The paths in the direction of gradients from any of the sources to the target, if any.

    Exact for any number of paths: they are counted over the topological order, edges between the
    same two nodes apart.
    """
    known = known or flow(graph)
    starts = [id for id in dict.fromkeys(sources) if id in known.nodes]
    ahead = reached(starts, known.onward)
    if target not in ahead:
        return None
    between = ahead & reached([target], known.consumers)
    count, longest = _counted(known, set(starts), between, target)
    nodes = _shortest(known, starts, target)
    shortest = sum(1 for id in nodes if not known.is_leaf(id))
    return Route(tuple(nodes), count, shortest, longest)


def main_path(known: Flow, start: int) -> list[int]:
    """The longest path from a node down to a leaf."""
    height: dict[int, int] = {}
    following: dict[int, int] = {}
    for id in reversed(known.order):
        best = -1
        for child in known.onward[id]:
            if height.get(child, -1) > best:
                best, following[id] = height[child], child
        height[id] = best + 1
    path = [start]
    while path[-1] in following and len(path) <= len(known.nodes):
        path.append(following[path[-1]])
    return path


def _places(graph: AutogradGraph, known: Flow) -> dict[str, list[Spot]]:
    """Every name with its nodes, nearest to the start first."""
    places: dict[str, list[Spot]] = {}
    if graph.root is not None and graph.root in known.nodes:
        places[graph.start] = [Spot(graph.root, graph.start)]
    _, homes = tree(graph, known)
    calls = Counter(call.name for call in graph.calls)
    for group, ids in entries(known, homes).values():
        if not group.name:
            continue
        number = re.search(r"#\d+$", group.key) if calls[group.name] > 1 else None
        name = f"{group.name}{number.group()}" if number else group.name
        found = [Spot(id, name) for id in ids]
        places.setdefault(group.name, []).extend(found)
        if number:
            places.setdefault(name, []).extend(found)
    for id in known.order:
        node = known.nodes[id]
        if node.kind != "function" and node.name:
            places.setdefault(node.name, []).append(Spot(id, node.name))
    return places


def _matching(word: str, graph: AutogradGraph, names: Iterable[str]) -> list[str]:
    types: dict[str, tuple[str, ...]] = {call.name: (call.type,) for call in graph.calls}
    try:
        pattern = Pattern(word)
    except GradscopeError as error:
        raise OptionError(*error.problems) from None
    named = [Named(name, (), types.get(name, ())) for name in names if "#" not in name]
    return [one.name for one in named if pattern.matches(one) != pattern.negated]


def reached(
    starts: Iterable[int], edges: dict[int, tuple[int, ...]] | dict[int, list[int]]
) -> set[int]:
    """Everything that the edges lead to from ``starts``, these included."""
    met = set(starts)
    stack = list(met)
    while stack:
        for other in edges.get(stack.pop(), ()):
            if other not in met:
                met.add(other)
                stack.append(other)
    return met


def _counted(known: Flow, starts: set[int], between: set[int], target: int) -> tuple[int, int]:
    """How many paths lead to the target, and the operations on the longest."""
    counts = dict.fromkeys(starts & between, 1)
    lengths = {id: 0 if known.is_leaf(id) else 1 for id in counts}
    for id in known.order:
        if id not in between:
            continue
        # What is passed is dropped: the numbers grow with the depth of the network.
        count = counts.get(id, 0) if id == target else counts.pop(id, 0)
        if id == target:
            break
        for child in known.onward[id]:
            if child in between:
                counts[child] = counts.get(child, 0) + count
                step = lengths.get(id, 0) + (0 if known.is_leaf(child) else 1)
                lengths[child] = max(lengths.get(child, 0), step)
    return counts.get(target, 1), lengths.get(target, 1)


def _shortest(known: Flow, starts: list[int], target: int) -> list[int]:
    """Breadth first, so that the first way to the target is a shortest one."""
    before: dict[int, int | None] = dict.fromkeys(starts)
    level = starts
    while target not in before:
        upcoming: list[int] = []
        for id in level:
            for child in known.onward[id]:
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
