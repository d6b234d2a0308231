"""Sentences on what is not in a graph, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gradscope.diagrams.graph.absent import answered
from gradscope.diagrams.graph.names import start
from gradscope.records.answers import Answer
from gradscope.records.graph import AutogradGraph
from gradscope.reporters.labels import some_names
from gradscope.typeset.console import Line
from gradscope.typeset.numbers import plural
from gradscope.typeset.text import plain

#: As many names stand for a cause.
_NAMES = 3


def absent(graph: AutogradGraph) -> Iterator[Line]:
    """The parameters without a gradient: each cause with its place, and the frozen ones."""
    if not graph.complete:  # nobody knows what would have followed
        return
    inside = {node.name for node in graph.nodes if node.kind == "parameter"}
    answered_names = {name for a in graph.answers for name in (a.name, *a.upstream)}
    explained = {*inside, *graph.frozen, *answered_names}
    silent = [name for name in graph.names if name not in explained]
    if graph.answers or silent or graph.frozen:
        yield Line("", "not in the graph", "head")
    for answer in graph.answers:
        yield from answer_lines(answer)
    if silent:
        yield Line(f"no path from {start(graph)} leads there", f"{some_names(silent, _NAMES)}:")
    if graph.frozen:
        yield Line(
            f"{plural(len(graph.frozen), 'parameter tensor')}, requires_grad is False", "frozen:"
        )


def cut(graph: AutogradGraph, names: Sequence[str]) -> Iterator[Line]:
    """Why what somebody asked for is not in the graph, each cause once."""
    if not names:
        return
    yield Line("", "not in the graph", "head")
    if not graph.complete:
        yield Line("the run stopped before there was an answer", f"{some_names(names, _NAMES)}:")
        return
    explained: set[str] = set()
    for answer in answered(graph, names):
        explained |= {answer.name, *answer.upstream}
        yield from answer_lines(answer)
    frozen = [name for name in names if name in graph.frozen and name not in explained]
    if frozen:
        yield Line("requires_grad is False", f"{some_names(frozen, _NAMES)} (frozen):")
    silent = [name for name in names if name not in explained and name not in graph.frozen]
    if silent:
        yield Line(f"no path from {start(graph)} leads there", f"{some_names(silent, _NAMES)}:")


def answer_lines(answer: Answer) -> Iterator[Line]:
    """One cause: whom it concerns, what and where it is, what helps."""
    names = answer.upstream or (answer.name,)
    message = plain(answer.message)
    module = plain(answer.module or "")
    if module and module not in message:
        message += f", in {module}"
    if answer.location and plain(answer.location) not in message:
        message += f" ({plain(answer.location)})"
    yield Line(
        message, f"{some_names(names, _NAMES)} ({plain(answer.cause or answer.state)}):", "warn"
    )
    if answer.advice:
        yield Line(plain(answer.advice), "help:", indent=1)
