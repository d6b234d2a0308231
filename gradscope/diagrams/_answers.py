"""Sentences on what is not in a graph, and why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from gradscope.diagrams._names import start
from gradscope.records.answers import Answer
from gradscope.records.graph import AutogradGraph
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
        yield Line(
            f"{plural(len(graph.frozen), 'parameter tensor')}, requires_grad is False", "frozen:"
        )


def cut(graph: AutogradGraph, names: Sequence[str]) -> Iterator[Line]:
    """Why what somebody asked for is not in the graph, each cause once."""
    if not names:
        return
    yield Line("", "not in the graph", "head")
    if not graph.complete:
        yield Line("the run stopped before there was an answer", f"{_some(names)}:")
        return
    told: set[str] = set()
    for answer in answered(graph, names):
        told |= {answer.name, *answer.behind}
        yield from answer_lines(answer)
    frozen = [name for name in names if name in graph.frozen and name not in told]
    if frozen:
        yield Line("requires_grad is False", f"{_some(frozen)} (frozen):")
    silent = [name for name in names if name not in told and name not in graph.frozen]
    if silent:
        yield Line(f"no path from {start(graph)} leads there", f"{_some(silent)}:")


def answered(graph: AutogradGraph, names: Iterable[str]) -> tuple[Answer, ...]:
    """The answers for names that are not in the graph; a module without parameters gets its own."""
    asked = set(names)
    found = [a for a in graph.answers if not asked.isdisjoint((a.name, *a.behind))]
    told = {name for answer in found for name in (answer.name, *answer.behind)}
    said = f"no operation of it is behind {start(graph)}"
    modules = sorted(asked - told - set(graph.names))
    return (*found, *(Answer(name, "module", "missing", said) for name in modules))


def reason(graph: AutogradGraph, name: str) -> str:
    """Why something is not in the graph, in half a sentence."""
    if not graph.complete:
        return "the run stopped before there was an answer"
    for answer in answered(graph, [name]):
        return answer.message + (f" ({answer.location})" if answer.location else "")
    if name in graph.frozen:
        return "it is frozen, requires_grad is False"
    return f"no path from {start(graph)} leads there"


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
