"""The part of a graph that lies on the paths between named places."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gradscope.diagrams.graph.absent import answered, reason
from gradscope.diagrams.graph.figures import saved_bytes
from gradscope.diagrams.graph.lookup import Lookup
from gradscope.diagrams.graph.paths import reached
from gradscope.diagrams.graph.view import GraphView
from gradscope.errors import OptionError
from gradscope.records.graph import AutogradGraph, GraphCall, GraphNode


def between(graph: AutogradGraph, view: GraphView, *, answers: bool = False) -> AutogradGraph:
    """The graph with only the nodes on paths from ``view.sources`` to ``view.targets``.

    Without sources paths begin at the root, without targets they end at any leaf. With ``answers``
    a name that is not in the graph is answered in the part; else it is refused.

    Raises:
        OptionError: a name that is not in the graph, or no path.
    """
    if graph.root is None or not (view.sources or view.targets):
        return graph
    names = Lookup(graph)
    words = (*view.sources, *view.targets)
    lost = list(dict.fromkeys(name for word in words for name in names.absent(word)))
    for name in lost if not answers else ():
        raise OptionError(
            f"`{name}` is not in the graph: {reason(graph, name)}",
            help="`-f terminal` says where it is cut, and why",
        )
    sources = [node.id for word in view.sources for node in names.nodes(word)]
    targets = [node.id for word in view.targets for node in names.nodes(word)]
    kept = _between(graph, sources if view.sources else [graph.root], targets, view)
    if not kept and not lost:
        ends = [", ".join(words) for words in (view.sources, view.targets)]
        raise OptionError(
            f"no path leads from {ends[0] or graph.start} to {ends[1] or 'a leaf'}",
            help="gradients flow from the loss to the parameters: try the other way round",
        )
    return _part(graph, kept, lost, view)


def _between(
    graph: AutogradGraph, sources: list[int], targets: list[int], view: GraphView
) -> set[int]:
    onward = {node.id: _onward(node) for node in graph.nodes}
    kept = reached(sources, onward)
    if view.targets:
        back: dict[int, list[int]] = {}
        for tail, heads in onward.items():
            for head in heads:
                back.setdefault(head, []).append(tail)
        kept &= reached(targets, back)
    return kept


def _part(graph: AutogradGraph, kept: set[int], lost: list[str], view: GraphView) -> AutogradGraph:
    """The record of the kept nodes alone: it says nothing of what was left out."""
    nodes = tuple(_within(node, kept) for node in graph.nodes if node.id in kept)
    inside = {node.name for node in nodes if node.kind == "parameter"}
    start = _words(view.sources) or graph.start
    part = f"paths from {start} to {_words(view.targets) or 'any leaf'}"
    part = part if graph.part is None else f"{part}, of the {graph.part}"
    graph = replace(
        graph,
        root=nodes[0].id if nodes else None,
        nodes=nodes,
        calls=_calls(graph, nodes),
        saved_bytes=_saved(nodes),
        names=tuple(name for name in graph.names if name in inside or name in lost),
        frozen=tuple(name for name in graph.frozen if name in lost),
        answers=answered(graph, lost),
        part=part,
    )
    if not view.sources:
        return graph
    return replace(graph, start=start, loss=None, loss_nonfinite=None)


def _words(words: Iterable[str]) -> str:
    return ", ".join(word or "(model)" for word in words)


def _onward(node: GraphNode) -> tuple[int, ...]:
    return tuple(edge[0] for edge in (*node.to, *node.inner) if edge is not None)


def _within(node: GraphNode, kept: set[int]) -> GraphNode:
    """The node without its edges to what is left out."""
    to = tuple(edge if edge is not None and edge[0] in kept else None for edge in node.to)
    return replace(node, to=to, inner=tuple(edge for edge in node.inner if edge[0] in kept))


def _calls(graph: AutogradGraph, nodes: tuple[GraphNode, ...]) -> tuple[GraphCall, ...]:
    """All calls of the modules that the nodes name, and the calls around them."""
    used = {node.module for node in nodes}
    kept = [call.name in used for call in graph.calls]
    for i in reversed(range(len(kept))):
        parent = graph.calls[i].parent
        if kept[i] and parent >= 0:
            kept[parent] = True
    places = {-1: -1}
    calls: list[GraphCall] = []
    for i, call in enumerate(graph.calls):
        if kept[i]:
            places[i] = len(calls)
            calls.append(replace(call, parent=places[call.parent]))
    return tuple(calls)


def _saved(nodes: tuple[GraphNode, ...]) -> int | None:
    """Bytes that they keep; None where one of them could not be read."""
    own = [node for node in nodes if node.kind == "function"]
    return None if any(node.saved_bytes is None for node in own) else saved_bytes(own)
