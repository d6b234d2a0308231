"""Sentences on what is not in a graph, and why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from gradscope.diagrams._names import start
from gradscope.records import Answer, AutogradGraph
from gradscope.typeset.console import Line
from gradscope.typeset.numbers import plural
from gradscope.typeset.text import plain

#: As many names stand for a cause.
_NAMES = 3


def absent(graph: AutogradGraph) -> Iterator[Line]:
    """The parameters without a gradient: each cause with its place, and the frozen ones."""
    inside = {node.name for node in graph.nodes if node.kind == "parameter"}
    told = {name for answer in graph.answers for name in (answer.name, *answer.behind)}
    known = {*inside, *graph.frozen, *told}
    silent = [name for name in graph.names if name not in known]
    if graph.answers or silent or graph.frozen:
        yield Line("", "not in the graph", "head")
    for answer in graph.answers:
        yield from answer_lines(answer)
    if silent:
        yield Line(f"no path from {start(graph)} leads there", f"{_some(silent)}:")
    if graph.frozen:
        yield Line(f"{plural(len(graph.frozen), 'parameter')}, no gradient asked for", "frozen:")


def cut(graph: AutogradGraph, names: Sequence[str]) -> Iterator[Line]:
    """Why the parameters that somebody asked for are not in the graph, each cause once."""
    if not names:
        return
    yield Line("", "not in the graph", "head")
    told: set[str] = set()
    for answer in graph.answers:
        behind = {answer.name, *answer.behind}
        if not behind.isdisjoint(names):
            told |= behind
            yield from answer_lines(answer)
    frozen = [name for name in names if name in graph.frozen and name not in told]
    if frozen:
        yield Line("no gradient is asked for", f"{_some(frozen)} (frozen):")
    silent = [name for name in names if name not in told and name not in graph.frozen]
    if silent:
        yield Line(f"no path from {start(graph)} leads there", f"{_some(silent)}:")


def answer_lines(answer: Answer) -> Iterator[Line]:
    """One cause: whom it concerns, what and where it is, what helps."""
    names = answer.behind or (answer.name,)
    said = plain(answer.message)
    module = plain(answer.module or "")
    if module and module not in said:
        said += f", in {module}"
    if answer.location and plain(answer.location) not in said:
        said += f" ({plain(answer.location)})"
    yield Line(said, f"{_some(names)} ({plain(answer.cause or answer.state)}):", "warn")
    if answer.advice:
        yield Line(plain(answer.advice), "help:", indent=1)


def _some(names: Iterable[str]) -> str:
    shown = [plain(name) for name in names]
    more = len(shown) - _NAMES
    return ", ".join(shown if more <= 1 else [*shown[:_NAMES], f"… {more} more"])
