"""Text in boxes, on frames, in tooltips and above a picture."""

from __future__ import annotations

from collections.abc import Iterator

from gradscope.diagrams.graph.groups import Group, start
from gradscope.diagrams.graph.view import GraphView
from gradscope.diagrams.picture.boxes import Drawing
from gradscope.records.answers import Answer
from gradscope.records.graph import AutogradGraph, GraphNode
from gradscope.typeset.numbers import count, number, plural, shape, size
from gradscope.typeset.text import plain

#: More leaves than this in one box are counted.
_LEAVES = 4
#: More causes than this above a picture are counted.
_CAUSES = 4
#: A line that is longer makes a picture wide.
_LONG = 110


def _sizes(sizes: tuple[int, ...] | None) -> str:
    return "" if sizes is None else shape(sizes)


def call(module: str | None, number: int | None) -> str:
    """Return a call's name: ``layer1.0``, and ``cell #2`` for a later call of the same module."""
    if module is None:
        return ""
    name = plain(module) or "the model"
    return f"{name} #{number}" if number else name


def gradient(norm: float | None, nonfinite: int = 0) -> str:
    """Return the gradient in words, so that nothing is shown by colour alone."""
    bad = f", {count(nonfinite)} NaN or Inf" if nonfinite else ""
    return f"gradient {number(norm)}{bad}" if norm is not None else f"no gradient{bad}"


def node_lines(
    node: GraphNode, leaves: tuple[GraphNode, ...], around: str | None, sizes: str | None = None
) -> tuple[str, ...]:
    """Return an operation's lines: its module without a frame, leaves, output and saved size,
    gradient.
    """
    lines = [plain(node.op)]
    if node.module is not None and node.module != around:
        lines.append(f"in {call(node.module, node.call)}")
    prefix = f"{node.module}." if node.module else ""
    named = [(plain(leaf.name or leaf.kind), _sizes(leaf.shape)) for leaf in leaves]
    lines += [f"{n.removeprefix(prefix)} {shape}".rstrip() for n, shape in named[:_LEAVES]]
    if len(named) > _LEAVES:
        lines.append(f"and {plural(len(named) - _LEAVES, 'more leaf', 'more leaves')}")
    sizes = _sizes(node.shape) if sizes is None else sizes
    facts = [f"output {sizes}"] if sizes else []
    if node.saved_bytes:
        facts.append(f"saves {size(node.saved_bytes)}")
    lines.append(" · ".join(facts))
    lines.append(gradient(node.grad_norm, node.grad_nonfinite or 0))
    return tuple(line for line in lines if line)


def leaf_lines(node: GraphNode) -> tuple[str, ...]:
    """Return the lines of a parameter or an input."""
    name = plain(node.name) if node.name else f"({node.kind} without a name)"
    lines = (name, f"{node.kind} {_sizes(node.shape)}".rstrip())
    return (*lines, gradient(node.grad_norm, node.grad_nonfinite or 0))


def group_lines(group: Group) -> tuple[str, ...]:
    """Return the lines of a closed group: its name, its size, the gradient that enters."""
    facts = [plural(group.ops, "op")]
    if group.parameters:
        facts.append(plural(group.parameters, "parameter"))
    lines = [cluster_label(group), " · ".join(facts)]
    if group.saved_bytes:
        lines.append(f"saves {size(group.saved_bytes)}")
    low, high = group.grad_low, group.grad_high
    if group.times > 1 and low is not None and high is not None and low != high:
        bad = f", {count(group.nonfinite)} NaN or Inf" if group.nonfinite else ""
        lines.append(f"gradient {number(low)} … {number(high)}{bad}")
    else:
        lines.append(gradient(group.grad_norm, group.nonfinite))
    lines += begins(group.mark)
    inside = (mark for mark in group.within if mark != group.mark)
    lines += [f"inside: {line}" for mark in inside for line in begins(mark)]
    return tuple(lines)


def begins(mark: str | None) -> list[str]:
    """Say in words how the gradient changes here: it becomes zero, NaN, Inf or missing."""
    words = {"zero": "zero from here on", "missing": "no gradient from here on"}
    words["nonfinite"] = "NaN or Inf from here on"
    return [words[mark]] if mark in words else []


def cluster_label(group: Group) -> str:
    """Return a frame's label: ``layer1 · Sequential``, ``0 … 11 ×12 · Block``."""
    kind = plain(group.type) if group.type and group.type != group.label else ""
    return f"{group.label}{group.repeats}" + (f" · {kind}" if kind else "")


def group_title(group: Group) -> str:
    """Return the tooltip of a group, open or closed."""
    name = plain(group.name) if group.name else group.label
    facts = [name, *group_lines(group)]
    if group.times > 1:
        how = "no path leads from one to another" if group.parallel else "each leads to the next"
        facts.append(f"{group.times} alike, drawn once; {how}")
    return "\n".join(dict.fromkeys(facts))


def node_title(node: GraphNode) -> str:
    """Return the tooltip of a node: everything that does not fit into its box."""
    facts = [plain(node.op), f"node {node.id}"]
    if node.name:
        facts.append(f"{node.kind} {plain(node.name)}")
    if node.module is not None:
        facts.append(f"made by {call(node.module, node.call)}")
    if node.shape is not None:
        facts.append(f"shape {_sizes(node.shape)}")
    for tensor in node.saved:
        facts.append(f"saves {plain(tensor.name)} {_sizes(tensor.shape)} {size(tensor.bytes)}")
    facts.append(gradient(node.grad_norm, node.grad_nonfinite or 0))
    if node.location:
        facts.append(plain(node.location))
    return "\n".join(facts)


def caption(graph: AutogradGraph) -> tuple[str, tuple[str, ...]]:
    """Return the title of a picture, and the lines below it."""
    kinds = [node.kind for node in graph.nodes]
    facts = [
        plural(kinds.count("function"), "operation"),
        plural(kinds.count("parameter"), "parameter tensor"),
    ]
    if "input" in kinds:
        facts.append(plural(kinds.count("input"), "input"))
    if graph.loss is not None and graph.start == "loss":
        facts.append(f"loss {number(graph.loss)}")
    if graph.saved_bytes:
        facts.append(f"saves {size(graph.saved_bytes)}")
    if graph.part is not None:
        facts.insert(0, f"only {plain(graph.part)}")
    title = f"{plain(graph.run.model)}: the autograd graph upstream of {start(graph)}"
    return title, (
        " · ".join(facts),
        "arrows lead the way that gradients flow back",
        *_missing(graph),
    )


def signs(drawing: Drawing, view: GraphView) -> Iterator[str]:
    """Explain each sign that occurs in the drawing."""
    titles = [c.label for c in drawing.clusters] + [
        box.lines[0] for box in drawing.boxes if box.kind == "repeats"
    ]
    if any(" ×" in title for title in titles):
        yield "×n after a name: n equal blocks, drawn as one"
    if any(arrow.count > 1 for arrow in drawing.arrows):
        yield "×n beside an arrow: n gradients flow along it"
    if view.hidden:
        yield f"{plural(view.hidden, 'view or transpose', 'views and transposes')} hidden"


def _missing(graph: AutogradGraph) -> list[str]:
    """Yield one line per cause that keeps parameters out of the graph."""
    if not graph.complete:
        return []
    answers = [a for a in graph.answers if a.kind == "parameter" and a.state == "missing"]
    lines = [_cause(answer) for answer in answers[:_CAUSES]]
    rest = sum(len(answer.upstream) or 1 for answer in answers[_CAUSES:])
    if rest:
        lines.append(f"not in the graph: {plural(rest, 'more parameter tensor')}")
    return lines


def _cause(answer: Answer) -> str:
    others = len(answer.upstream) - 1
    names = plain(answer.name) + (f" and {others} more" if others > 0 else "")
    why = ", ".join(plain(part) for part in (answer.cause, answer.location) if part)
    line = f"not in the graph: {names}" + (f" ({why})" if why else "")
    return line if len(line) <= _LONG else f"{line[:_LONG]}…"
