"""The part of a graph that lies on the paths between named places."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from gradscope.diagrams._paths import absent, find
from gradscope.diagrams._view import GraphView
from gradscope.errors import OptionError
from gradscope.records import AutogradGraph, GraphNode


def between(graph: AutogradGraph, view: GraphView) -> AutogradGraph:
    """The graph with only the nodes on paths from ``view.sources`` to ``view.targets``.

    Without sources paths begin at the root, without targets they end at any leaf.

    Raises:
        OptionError: a name that is not in the graph, or no path.
    """
    if graph.root is None or not (view.sources or view.targets):
        return graph
    for name in (name for word in (*view.sources, *view.targets) for name in absent(graph, word)):
        raise OptionError(
            f"`{name}` is not in the graph", help="`-f terminal` says where it is cut, and why"
        )
    sources = [id for word in view.sources for id in find(graph, word)]
    targets = [id for word in view.targets for id in find(graph, word)]
    onward = {node.id: _onward(node) for node in graph.nodes}
    back: dict[int, list[int]] = {}
    for tail, heads in onward.items():
        for head in heads:
            back.setdefault(head, []).append(tail)
    kept = _reached(sources if view.sources else [node.id for node in graph.nodes[:1]], onward)
    if view.targets:
        kept &= _reached(targets, back)
    if not kept:
        ends = [", ".join(words) for words in (view.sources, view.targets)]
        raise OptionError(
            f"no path leads from {ends[0] or graph.start} to {ends[1] or 'a leaf'}",
            help="gradients flow from the loss to the parameters: try the other way round",
        )
    nodes = tuple(_within(node, kept) for node in graph.nodes if node.id in kept)
    # The sum over all storages is known of the whole only.
    return replace(graph, root=nodes[0].id, nodes=nodes, saved_bytes=None)


def _onward(node: GraphNode) -> tuple[int, ...]:
    return tuple(edge[0] for edge in (*node.to, *node.inner) if edge is not None)


def _reached(starts: Iterable[int], edges: Mapping[int, Iterable[int]]) -> set[int]:
    met = set(starts)
    todo = list(met)
    while todo:
        for other in edges.get(todo.pop(), ()):
            if other not in met:
                met.add(other)
                todo.append(other)
    return met


def _within(node: GraphNode, kept: set[int]) -> GraphNode:
    """The node without its edges to what is left out."""
    to = tuple(edge if edge is not None and edge[0] in kept else None for edge in node.to)
    return replace(node, to=to, inner=tuple(edge for edge in node.inner if edge[0] in kept))
