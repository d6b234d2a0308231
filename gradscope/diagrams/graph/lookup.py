"""Finds places in a graph by name, and the parts of the model that are not in it.

The graph's start is found by its own word first, then modules, parameters and inputs by their
names, a module's call as ``cell#2``, and then patterns. A module that has the start's name is found
by its call, ``loss#0``, or by a pattern, ``re:loss``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from gradscope.diagrams.graph.figures import entries
from gradscope.diagrams.graph.flow import Flow, read_flow
from gradscope.diagrams.graph.grouping import tree
from gradscope.errors import GradscopeError, OptionError, did_you_mean
from gradscope.patterns import Named, Pattern
from gradscope.records.graph import AutogradGraph


@dataclass(frozen=True, slots=True)
class NamedNode:
    """A place in the graph with the name by which it was asked for."""

    id: int
    name: str


class Lookup:
    """Every name with its nodes; linear to make, so it is made once for all words."""

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
        """The places of a name or pattern; a module that ran n times has n places at least.

        None where only something that is not in the graph has such a name (``absent``).

        Raises:
            OptionError: neither the graph nor the model has such a name; the closest are named.
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
        """What has that name and is not in the graph.

        These are parameters, those of modules without a place in it, and else such modules that ran
        all the same.
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
        # A module that ran once has its call's number too, if nobody says it.
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
    """The modules that hold a parameter, from the model inwards."""
    parts = name.split(".")[:-1]
    return ["", *(".".join(parts[: i + 1]) for i in range(len(parts)))]


def find(graph: AutogradGraph, word: str, flow: Flow | None = None) -> list[int]:
    """The nodes of a name or pattern, as ``Lookup.nodes``."""
    return [node.id for node in Lookup(graph, flow).nodes(word)]
