"""Finds nodes of a graph by name, the part between two nodes, and the reason why a name is absent.

A word is the graph's start (``loss``), else a module, parameter or input, else a call such as
``cell#2``, else a pattern. For a module named like the start, use its call, ``loss#0``, or a
pattern, ``re:loss``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from gradscope.diagrams.graph import GraphView
from gradscope.diagrams.graph.flow import Flow, reached, read_flow
from gradscope.diagrams.graph.grouping import below, tree
from gradscope.diagrams.graph.groups import entries, saved_bytes, start
from gradscope.errors import GradscopeError, OptionError, did_you_mean
from gradscope.patterns import Named, Pattern, matching
from gradscope.records.answers import Answer
from gradscope.records.graph import AutogradGraph, GraphCall, GraphNode


@dataclass(frozen=True, slots=True)
class NamedNode:
    """A node of the graph with its requested name."""

    id: int
    name: str


class Lookup:
    """All names with their nodes.

    Building it is linear in the graph, so it is built once for all words.
    """

    def __init__(self, graph: AutogradGraph, flow: Flow | None = None) -> None:
        self._graph = graph
        flow = flow or read_flow(graph)
        self._start = graph.start if graph.root in flow.nodes else None
        self._types = {call.name: (call.type,) for call in graph.calls}
        self._calls = Counter(call.name for call in graph.calls)
        self._places: dict[str, list[NamedNode]] = {}
        _, homes = tree(graph, flow)
        for group, ids in entries(flow, homes).values():
            if group.name is None:
                continue
            number = re.search(r"#\d+$", group.key) if self._calls[group.name] > 1 else None
            shown = group.name or "(model)"
            found = [NamedNode(id, f"{shown}{number.group()}" if number else shown) for id in ids]
            self._places.setdefault(group.name, []).extend(found)
            if number:
                self._places.setdefault(f"{group.name}{number.group()}", []).extend(found)
        for id in flow.order:
            node = flow.nodes[id]
            if flow.is_leaf(id) and node.name:
                self._places.setdefault(node.name, []).append(NamedNode(id, node.name))
        inside = {node.name for node in graph.nodes if node.kind == "parameter"}
        self._outside = [name for name in graph.names if name not in inside]
        modules = (*self._types, *(around for name in graph.names for around in _around(name)))
        self._empty = [name for name in dict.fromkeys(modules) if name not in self._places]

    def nodes(self, word: str) -> list[NamedNode]:
        """Return the nodes of a name or pattern; a module that ran n times has at least n.

        Empty if the name exists, but not in the graph (see ``absent``).

        Raises:
            OptionError: neither the graph nor the model has the name; the message suggests the
                closest.
        """
        if self._exact(word) is not None:
            return self._exact(word) or []
        found = [node for name in self._matching(word, self._places) for node in self._places[name]]
        start = self._start
        if start is not None and start not in self._places and self._matching(word, [start]):
            found = [*(self._exact(start) or ()), *found]
        if not found and not self.absent(word):
            names = [name for name in dict.fromkeys((start, *self._places)) if name]
            close = did_you_mean(word, dict.fromkeys((*names, *self._graph.names)), count=3)
            some = ", ".join(names[:6]) + (", …" if len(names) > 6 else "")
            raise OptionError(
                f"nothing in the graph is called `{word}`",
                help=close or f"names here are {some}: parameters, inputs, modules, the start",
            )
        return list(dict.fromkeys(found))

    def absent(self, word: str) -> list[str]:
        """Return names that match the word and exist, but are not in the graph: parameters, also of
        matching modules without a node; else such modules, if they ran.
        """
        if word in self._outside:
            return [word]
        if self._exact(word) is not None:
            return []
        found = self._matching(word, self._outside)
        modules = self._matching(word, self._empty)
        held = set(modules)
        found += [name for name in self._outside if not held.isdisjoint(_around(name))]
        if not found and not self._matching(word, self._places) and self._graph.part is None:
            found = [name for name in modules if self._calls[name]]
        return list(dict.fromkeys(found))

    def _exact(self, word: str) -> list[NamedNode] | None:
        if word == self._start and self._graph.root is not None:
            return [NamedNode(self._graph.root, word)]
        if word in self._places:
            return list(dict.fromkeys(self._places[word]))
        name, sign, number = word.rpartition("#")
        # A module that ran once needs no call number.
        if sign and any(c.name == name and str(c.call) == number for c in self._graph.calls):
            return self._places.get(name)
        return None

    def _matching(self, word: str, names: Iterable[str]) -> list[str]:
        try:
            pattern = Pattern(word)
        except GradscopeError as error:
            raise OptionError(*error.problems) from None
        named = (Named(name, (), self._types.get(name, ())) for name in names if "#" not in name)
        return [one.name for one in named if pattern.matches(one) != pattern.negated]


def _around(name: str) -> list[str]:
    """Return the modules that hold a parameter, from the model inwards."""
    parts = name.split(".")[:-1]
    return ["", *(".".join(parts[: i + 1]) for i in range(len(parts)))]


def find(graph: AutogradGraph, word: str, flow: Flow | None = None) -> list[int]:
    """Return the nodes of a name or pattern, as ``Lookup.nodes``."""
    return [node.id for node in Lookup(graph, flow).nodes(word)]


def answered(graph: AutogradGraph, names: Iterable[str]) -> tuple[Answer, ...]:
    """Return the answers for names that are not in the graph, also for a module without
    parameters."""
    asked = set(names)
    found = [a for a in graph.answers if not asked.isdisjoint((a.name, *a.upstream))]
    explained = {name for answer in found for name in (answer.name, *answer.upstream)}
    message = f"no operation of it is upstream of {start(graph)}"
    modules = sorted(asked - explained - set(graph.names))
    return (*found, *(Answer(name, "module", "missing", message) for name in modules))


def reason(graph: AutogradGraph, name: str) -> str:
    """Return the reason why a name is not in the graph, as half a sentence."""
    if not graph.complete:
        return "the run stopped before there was an answer"
    for answer in answered(graph, [name]):
        return answer.message + (f" ({answer.location})" if answer.location else "")
    if name in graph.frozen:
        return "it is frozen, requires_grad is False"
    return f"no path from {start(graph)} leads there"


def between(graph: AutogradGraph, view: GraphView, *, answers: bool = False) -> AutogradGraph:
    """Return the graph with only the nodes on paths from ``view.sources`` to ``view.targets``.

    Without sources, paths begin at the root; without targets, they end at any leaf. With
    ``answers``, a name that is not in the graph becomes an answer; otherwise it is an error.

    Raises:
        OptionError: a name is not in the graph, or there is no path.
    """
    if graph.root is None or not (view.sources or view.targets):
        return graph
    names = Lookup(graph)
    words = (*view.sources, *view.targets)
    lost = list(dict.fromkeys(name for word in words for name in names.absent(word)))
    for name in lost if not answers else ():
        raise OptionError(
            f"`{name}` is not in the graph: {reason(graph, name)}",
            help="`-f terminal` shows where and why it is cut",
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
    onward = {
        node.id: tuple(e[0] for e in (*node.to, *node.inner) if e is not None)
        for node in graph.nodes
    }
    kept = reached(sources, onward)
    if view.targets:
        back: dict[int, list[int]] = {}
        for tail, heads in onward.items():
            for head in heads:
                back.setdefault(head, []).append(tail)
        kept &= reached(targets, back)
    return kept


def _part(graph: AutogradGraph, kept: set[int], lost: list[str], view: GraphView) -> AutogradGraph:
    """Return the record of the kept nodes alone, without a hint of the others."""
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


def _within(node: GraphNode, kept: set[int]) -> GraphNode:
    """Return the node without edges to dropped nodes."""
    to = tuple(edge if edge is not None and edge[0] in kept else None for edge in node.to)
    return replace(node, to=to, inner=tuple(edge for edge in node.inner if edge[0] in kept))


def _calls(graph: AutogradGraph, nodes: tuple[GraphNode, ...]) -> tuple[GraphCall, ...]:
    """Return all calls of the nodes' modules, and the calls around them."""
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
    """Return the bytes that nodes keep; None if one of them could not be read."""
    own = [node for node in nodes if node.kind == "function"]
    return None if any(node.saved_bytes is None for node in own) else saved_bytes(own)


def check_layers(graph: AutogradGraph, patterns: Sequence[str]) -> None:
    """Check ``--layers`` and ``--exclude`` against a saved graph's modules.

    Raises:
        LayerError: a pattern matches no module, or no module is left.
    """
    if patterns:
        matching(patterns, _modules(graph), what="module of the graph")


def check_expand(graph: AutogradGraph, patterns: Sequence[str]) -> None:
    """Check the patterns of ``--expand``.

    Raises:
        LayerError: a pattern matches no module with operations.
    """
    if not patterns or graph.root is None:
        return
    root, _ = tree(graph, read_flow(graph))
    names = {g.name: g.type for g in below(root) if g.name is not None}
    named = [Named(name, (), (kind,) if kind else ()) for name, kind in names.items()]
    matching(patterns, named, what="module of the graph")


def _modules(graph: AutogradGraph) -> Iterator[Named]:
    """Yield the modules that ran, the modules around them, and those that hold parameters."""
    types = {call.name: call.type for call in graph.calls}
    names = {"": None, **dict.fromkeys(types)}
    for name in (*types, *(name.rpartition(".")[0] for name in graph.names)):
        parts = name.split(".")
        names.update(dict.fromkeys(".".join(parts[: i + 1]) for i in range(len(parts))))
    for name in names:
        kind = types.get(name)
        yield Named(name, (), (kind,) if kind else ())
