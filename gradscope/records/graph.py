"""The autograd graph of the loss or of one output, and properties of every such graph."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from gradscope.records.answers import Answer
from gradscope.records.data import SPARSE
from gradscope.records.run import ErrorRecord, RunInfo
from gradscope.records.showing import Shown


@dataclass(frozen=True, slots=True)
class SavedTensor:
    """A tensor that a node keeps for backward; ``name`` is the attribute without ``_saved_``.

    Tensors with one ``storage`` share memory; ``bytes`` is the full storage's. 0 bytes: it is a
    parameter's own memory, which costs nothing extra. A buffer's memory counts, as it does for
    autograd.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    storage: int


@dataclass(frozen=True, slots=True)
class GraphNode:
    """One node of the autograd graph; ``to`` follows ``next_functions``: (id, input number).

    ``grad_norm`` is the norm of the gradient that reached the node in backward, over its finite
    elements; None if none arrived. ``saved_bytes`` is None if its saved tensors could not be read.
    ``inner`` has the outputs of the graph that a reentrant checkpoint built in backward.
    """

    id: int
    op: str
    kind: str  # function | parameter | input
    name: str | None = None
    module: str | None = None
    call: int | None = None
    shape: tuple[int, ...] | None = None
    to: tuple[tuple[int, int] | None, ...] = ()
    saved_bytes: int | None = None
    grad_norm: float | None = None
    grad_nonfinite: int = field(default=0, metadata=SPARSE)
    saved: tuple[SavedTensor, ...] = field(default=(), metadata=SPARSE)
    inner: tuple[tuple[int, int], ...] = field(default=(), metadata=SPARSE)
    #: The user's file and line that made it, if requested.
    location: str | None = field(default=None, metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class GraphCall:
    """A module's call that made nodes of the graph; ``parent`` is the index of the call around it,
    -1 without one."""

    name: str
    call: int
    type: str
    parent: int = -1


@dataclass(frozen=True, slots=True, repr=False)
class AutogradGraph(Shown):
    """The autograd graph upstream of the loss, or of another output, as one backward found it.

    ``nodes`` are in topological order: each before those that it leads to.

    ``root`` is the first node's id; None without a graph. ``answers`` give the reason for
    parameters that could have a gradient but got none. ``part`` names the paths that were kept of a
    larger graph. Then edges to omitted nodes are None, and ``names``, ``frozen`` and ``answers``
    cover only the part and the requested names.
    """

    run: RunInfo
    root: int | None = None
    nodes: tuple[GraphNode, ...] = ()
    start: str = "loss"
    schema: str = "gradscope.graph/2"
    status: str = "ok"  # ok | failed
    versions: dict[str, str] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    loss: float | None = None
    loss_nonfinite: str | None = None
    saved_bytes: int | None = None  # of the full graph, each storage once
    calls: tuple[GraphCall, ...] = ()
    names: tuple[str, ...] = ()  # of every parameter of the model, in the graph or not
    frozen: tuple[str, ...] = ()  # of those, which require no gradient
    answers: tuple[Answer, ...] = ()
    error: ErrorRecord | None = None
    part: str | None = field(default=None, metadata=SPARSE)

    @property
    def complete(self) -> bool:
        """True if the run completed, so that a part missing here does not exist.

        A loss without a graph is an answer too.
        """
        if self.error is None:
            return self.status == "ok"
        return self.error.kind == "no-grad-root" and self.error.phase == "backward"


@dataclass(frozen=True, slots=True)
class Chain:
    """The autograd graph from one output of one call back to its leaves; the root comes first."""

    name: str
    call: int
    path: str
    nodes: tuple[GraphNode, ...] = ()


KINDS = ("function", "parameter", "input")
STATUSES = ("ok", "failed")


def faults(graph: AutogradGraph) -> Iterator[tuple[str, str]]:
    """Yield each faulty place, such as ``nodes[5].to[0]``, with a sentence; linear in nodes and
    edges."""
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
    """Yield edges that do not lead to a later node: such an order excludes cycles."""
    for name, edges in (("to", node.to), ("inner", node.inner)):
        for i, edge in enumerate(edges):
            if edge is None:
                continue
            where = f"nodes[{place}].{name}[{i}]"
            if edge[0] not in places:
                yield where, f"no node has the id {edge[0]}"
            elif places[edge[0]] <= place:
                rule = "a node comes before all nodes that it leads to"
                yield where, f"{edge[0]} is the id of nodes[{places[edge[0]]}]: {rule}"
            if edge[1] < 0:
                yield f"{where}[1]", _negative(edge[1])


def _negative(value: float) -> str:
    return f"expected 0 or more, found {value}"
