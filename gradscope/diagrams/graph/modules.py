"""Do patterns name modules of a graph? Asked before anything is drawn, whatever the format."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gradscope.diagrams.graph.flow import read_flow
from gradscope.diagrams.graph.group import below
from gradscope.diagrams.graph.grouping import tree
from gradscope.patterns import Named, matching
from gradscope.records.graph import AutogradGraph


def check_layers(graph: AutogradGraph, patterns: Sequence[str]) -> None:
    """Check ``--layers`` and ``--exclude`` against what a saved graph knows of its model.

    Raises:
        LayerError: a pattern matches none of its modules, or together they leave none.
    """
    if patterns:
        matching(patterns, _modules(graph), what="module of the graph")


def check_expand(graph: AutogradGraph, patterns: Sequence[str]) -> None:
    """Check ``--expand``, which opens what has operations.

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
    """The modules that ran, those around them, and those that hold parameters."""
    types = {call.name: call.type for call in graph.calls}
    names = {"": None, **dict.fromkeys(types)}
    for name in (*types, *(name.rpartition(".")[0] for name in graph.names)):
        parts = name.split(".")
        names.update(dict.fromkeys(".".join(parts[: i + 1]) for i in range(len(parts))))
    for name in names:
        kind = types.get(name)
        yield Named(name, (), (kind,) if kind else ())
