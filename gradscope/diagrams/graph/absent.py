"""Names that were requested but are not in a graph, and why."""

from __future__ import annotations

from collections.abc import Iterable

from gradscope.diagrams.graph.names import start
from gradscope.records.answers import Answer
from gradscope.records.graph import AutogradGraph


def answered(graph: AutogradGraph, names: Iterable[str]) -> tuple[Answer, ...]:
    """The answers for names that are not in the graph; a module without parameters gets its own."""
    asked = set(names)
    found = [a for a in graph.answers if not asked.isdisjoint((a.name, *a.upstream))]
    explained = {name for answer in found for name in (answer.name, *answer.upstream)}
    message = f"no operation of it is upstream of {start(graph)}"
    modules = sorted(asked - explained - set(graph.names))
    return (*found, *(Answer(name, "module", "missing", message) for name in modules))


def reason(graph: AutogradGraph, name: str) -> str:
    """Why something is not in the graph, in half a sentence."""
    if not graph.complete:
        return "the run stopped before there was an answer"
    for answer in answered(graph, [name]):
        return answer.message + (f" ({answer.location})" if answer.location else "")
    if name in graph.frozen:
        return "it is frozen, requires_grad is False"
    return f"no path from {start(graph)} leads there"
