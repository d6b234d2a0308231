"""Names of groups and nodes in text, and a path as a chain of such names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from gradscope.diagrams.graph.flow import Flow, Span
from gradscope.diagrams.graph.groups import Group, shown
from gradscope.records.graph import AutogradGraph, GraphNode
from gradscope.typeset.numbers import shape
from gradscope.typeset.text import plain


def title(node: GraphNode) -> str:
    """A node as a reader calls it: an operation, or a leaf's name."""
    if node.kind == "function":
        return plain(node.op)
    return plain(node.name) if node.name else f"(unnamed {node.kind})"


def operation(node: GraphNode) -> str:
    """A node as a reader calls it, a leaf with its shape."""
    bare = node.kind == "function" or node.shape is None
    return title(node) if bare else f"{title(node)} {shape(node.shape or ())}"


def ranges(span: Span) -> str:
    """A shape of which dimensions may differ: ``[7…9, 16]``."""
    sizes = (str(low) if low == high else f"{low}…{high}" for low, high in span)
    return f"[{', '.join(sizes)}]"


def sizes(flow: Flow, id: int) -> str:
    """An operation's or a leaf's shape as shown; empty where it is not known or not one."""
    if id in flow.spans:
        span = flow.spans[id]
        return "" if span is None else ranges(span)
    found = flow.nodes[id].shape
    return "" if found is None else shape(found)


def start(graph: AutogradGraph) -> str:
    """What the graph is of, in a sentence."""
    return "the loss" if graph.start == "loss" else plain(graph.start)


def label(group: Group) -> str:
    """A group as a reader calls it."""
    return f"{group.label}{group.repeats}"


def dotted(group: Group) -> str:
    """A group's full name: ``layer1.0``, ``h.1 … 95 ×95``, ``cell #2``."""
    text = label(group)
    name = plain(group.name or "")
    around = name.rpartition(".")[0]
    return f"{around}.{text}" if around and not text.startswith(f"{around}.") else text


def chain(
    path: Sequence[int], root: Group, flow: Flow, is_open: Callable[[Group], bool]
) -> Iterator[str]:
    """A path's stations, modules instead of what happens inside one."""

    def entered(group: Group) -> bool:
        held = group.name == "" or any(True for _ in group.groups())
        return group is root or (held and group.times == 1 and is_open(group))

    places = shown(root, entered)
    last: Group | int | None = None
    for id in path:
        place = places.get(id, id)
        if place is not last or isinstance(place, int):
            yield dotted(place) if isinstance(place, Group) else operation(flow.nodes[place])
        last = place
