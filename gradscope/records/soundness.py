"""Invariants of every autograd graph; each fault with its place."""

from __future__ import annotations

from collections.abc import Iterator

from gradscope.records.graph import AutogradGraph, GraphNode

KINDS = ("function", "parameter", "input")
STATUSES = ("ok", "failed")


def faults(graph: AutogradGraph) -> Iterator[tuple[str, str]]:
    """Each place, such as ``nodes[5].to[0]``, with a sentence; linear in nodes and edges."""
    if graph.status not in STATUSES:
        yield "status", f"expected {' or '.join(STATUSES)}, found `{graph.status}`"
    if graph.saved_bytes is not None and graph.saved_bytes < 0:
        yield "saved_bytes", _negative(graph.saved_bytes)
    yield from _calls(graph)
    places: dict[int, int] = {}
    for i, node in enumerate(graph.nodes):
        if places.setdefault(node.id, i) != i:
            yield f"nodes[{i}].id", f"{node.id} is the id of nodes[{places[node.id]}] too"
    first = graph.nodes[0].id if graph.nodes else None
    if graph.root != first:
        wanted = "null: there is no node" if first is None else f"the first node's id, {first}"
        found = "null" if graph.root is None else graph.root
        yield "root", f"expected {wanted}, found {found}"
    called = {(call.name, call.call) for call in graph.calls}
    for i, node in enumerate(graph.nodes):
        yield from _node(node, f"nodes[{i}]")
        if node.module is not None and (node.module, node.call) not in called:
            number = "" if node.call is None else f" #{node.call}"
            yield f"nodes[{i}].module", f"no call of `{node.module}`{number} is in `calls`"
        yield from _edges(node, i, places)


def _calls(graph: AutogradGraph) -> Iterator[tuple[str, str]]:
    seen: set[tuple[str, int]] = set()
    for i, call in enumerate(graph.calls):
        if (call.name, call.call) in seen:
            yield f"calls[{i}]", f"call #{call.call} of `{call.name}` is there twice"
        seen.add((call.name, call.call))
        if call.call < 0:
            yield f"calls[{i}].call", _negative(call.call)
        if not -1 <= call.parent < i:
            rule = "expected the place of an earlier call, or -1 for none"
            yield f"calls[{i}].parent", f"{rule}, found {call.parent}"


def _node(node: GraphNode, where: str) -> Iterator[tuple[str, str]]:
    if node.kind not in KINDS:
        yield f"{where}.kind", f"expected {' or '.join(KINDS)}, found `{node.kind}`"
    for name in ("saved_bytes", "grad_norm", "grad_nonfinite"):
        value = getattr(node, name)
        if value is not None and value < 0:
            yield f"{where}.{name}", _negative(value)
    for i, size in enumerate(node.shape or ()):
        if size < 0:
            yield f"{where}.shape[{i}]", _negative(size)
    for i, tensor in enumerate(node.saved):
        if tensor.bytes < 0:
            yield f"{where}.saved[{i}].bytes", _negative(tensor.bytes)
        for j, size in enumerate(tensor.shape):
            if size < 0:
                yield f"{where}.saved[{i}].shape[{j}]", _negative(size)


def _edges(node: GraphNode, place: int, places: dict[int, int]) -> Iterator[tuple[str, str]]:
    """Each edge leads to a later node: an order in which no circle has a place."""
    for name, edges in (("to", node.to), ("inner", node.inner)):
        for i, edge in enumerate(edges):
            if edge is None:
                continue
            where = f"nodes[{place}].{name}[{i}]"
            if edge[0] not in places:
                yield where, f"no node has the id {edge[0]}"
            elif places[edge[0]] <= place:
                rule = "a node stands before all that it leads to"
                yield where, f"{edge[0]} is the id of nodes[{places[edge[0]]}]: {rule}"
            if edge[1] < 0:
                yield f"{where}[1]", _negative(edge[1])


def _negative(value: float) -> str:
    return f"expected 0 or more, found {value}"
