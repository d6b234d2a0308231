"""One walk over the autograd graph finds the consumers of each edge, the call that made each node,
and the tensors saved for backward.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.autograd.graph import GradientEdge, Node

#: Where a gradient enters the graph: a node and which of its outputs, or a leaf tensor's ``id``.
#: A leaf's own node is left alone: asking for it makes a node, and that would shift the sequence
#: numbers by which calls and checkpoints are distinguished.
Edge = tuple[Node | int, int]


#: An in-place write through a view, as the base sees it.
WRITE = "CopySlices"

#: The class of the nodes that write a leaf's ``.grad``.
LEAF: Any = torch._C._functions.AccumulateGrad


@dataclass(frozen=True, slots=True)
class Consumer:
    """``node`` reads an edge as its input ``position``; ``sequence`` says when it was made."""

    sequence: int
    node: Node
    position: int


@dataclass(frozen=True, slots=True)
class Span:
    """The sequence numbers of the nodes that one call made: ``start`` up to before ``end``.

    ``parent`` is the index of the enclosing call's span, -1 at the top.
    """

    start: int
    end: int
    parent: int


@dataclass(slots=True)
class Walk:
    """Every node reachable from the roots, and the consumers of the requested edges, also of the
    results of in-place writes."""

    nodes: list[Node] = field(default_factory=list)
    consumers: dict[Edge, list[Consumer]] = field(default_factory=dict)
    roots: set[Edge] = field(default_factory=set)
    leaves: list[torch.Tensor] = field(default_factory=list)

    def reaches(self, edge: Edge) -> bool:
        """Return True if the roots depend on this edge."""
        return edge in self.roots or bool(self.consumers.get(edge))


def free_nodes(nodes: list[Node]) -> None:
    """Free a list of nodes one by one, each before the nodes that it leads to, after all tensors
    are gone. torch 2.15 frees nodes with a Python object recursively, so a chain of some 30,000
    overflows the stack.

    The list still holds the next node while one is freed, so no node frees another.
    """
    nodes.sort(key=_number)
    while nodes:
        nodes.pop()


def _number(node: Node) -> int:
    try:
        return node._sequence_nr()
    except RuntimeError:  # torch 2.8: of an autograd function in Python that has run
        return 0


def edge_of(tensor: torch.Tensor | GradientEdge) -> Edge:
    """Return the edge at which a tensor's gradient enters the graph; the tensor must require a
    gradient."""
    if isinstance(tensor, GradientEdge):
        return tensor.node, tensor.output_nr
    node = tensor.grad_fn
    return (id(tensor), 0) if node is None else (node, tensor.output_nr)


def walk(roots: Iterable[Edge], wanted: set[Edge], *, since: int = 0) -> Walk:
    """Visit every node upstream of ``roots`` once, without recursion.

    Args:
        roots: the edges of the tensors that backward starts from.
        wanted: the edges whose consumers are kept.
        since: nodes with a smaller sequence number are not entered.
    """
    found = Walk(roots=set(roots))
    stack = [node for node, _ in found.roots if not isinstance(node, int)]
    seen = set(stack)
    while stack:
        node = stack.pop()
        found.nodes.append(node)
        sequence = node._sequence_nr()
        if sequence < since:
            continue
        for position, (following, number) in enumerate(node.next_functions):
            if following is None:
                continue
            edge: Edge = (following, number)
            if isinstance(following, LEAF):
                edge = (id(following.variable), 0)
            if edge in wanted or type(following).__name__ == WRITE:
                found.consumers.setdefault(edge, []).append(Consumer(sequence, node, position))
            if following not in seen:
                seen.add(following)
                stack.append(following)
                if isinstance(following, LEAF):
                    found.leaves.append(following.variable)
    for consumers in found.consumers.values():
        consumers.sort(key=lambda consumer: consumer.sequence)
    return found


def owners(nodes: Sequence[Node], spans: Sequence[Span]) -> list[int]:
    """Return for each node the index of the innermost call that made it, -1 without one."""
    numbers = [node._sequence_nr() for node in nodes]
    result = [-1] * len(nodes)
    # Spans are nested and sorted by their start, so one sweep with a stack of open spans is enough.
    open_spans: list[int] = []
    upcoming = 0
    for i in sorted(range(len(nodes)), key=numbers.__getitem__):
        sequence = numbers[i]
        while upcoming < len(spans) and spans[upcoming].start <= sequence:
            while open_spans and spans[open_spans[-1]].end <= spans[upcoming].start:
                open_spans.pop()
            open_spans.append(upcoming)
            upcoming += 1
        while open_spans and spans[open_spans[-1]].end <= sequence:
            open_spans.pop()
        result[i] = open_spans[-1] if open_spans else -1
    return result


class SavedBytes:
    """Bytes that autograd nodes keep alive for backward: per call and in total, each storage
    once."""

    def __init__(self, excluded: Iterable[torch.Tensor]) -> None:
        self._excluded = {storage_key(part) for t in excluded for part in dense_parts(t)}
        self._by_call: dict[int, dict[int, int]] = {}

    def add(self, tensor: torch.Tensor, call: int) -> None:
        """Count ``tensor`` as kept by a node of call number ``call``; -1 is outside every call."""
        for part in dense_parts(tensor):
            key = storage_key(part)
            if key not in self._excluded and not is_python_number(part):
                self._by_call.setdefault(call, {})[key] = part.untyped_storage().nbytes()

    def totals(self, spans: Sequence[Span]) -> tuple[dict[int, int], int]:
        """Return the bytes of each call, with its children's, and of the full graph."""
        by_call = self._by_call
        for index in range(len(spans) - 1, -1, -1):  # children come after their parents
            if index in by_call and spans[index].parent != -1:
                by_call.setdefault(spans[index].parent, {}).update(by_call[index])
        everything: dict[int, int] = {}
        for storages in by_call.values():
            everything.update(storages)
        return {call: sum(s.values()) for call, s in by_call.items()}, sum(everything.values())


def storage_key(tensor: torch.Tensor) -> int:
    """Return a key that two tensors share if they share memory."""
    if tensor.device.type == "meta":
        return int(tensor.untyped_storage()._cdata)
    return int(tensor.untyped_storage().data_ptr())


_NARROW = {
    torch.int64: torch.int32,
    torch.float64: torch.float32,
    torch.complex128: torch.complex64,
}


def is_python_number(tensor: torch.Tensor) -> bool:
    """Return True for a Python number, such as the 3 in ``x * 3``, which autograd keeps as a
    tensor.

    Unlike a tensor of the user, it does not promote the dtype of a 0-dim tensor.
    """
    narrow = _NARROW.get(tensor.dtype)
    if tensor.dim() or narrow is None:
        return False
    return torch.result_type(tensor, torch.ones((), dtype=narrow, device="cpu")) == narrow


def dense_parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    if tensor.layout == torch.strided:
        return [tensor]
    if tensor.layout == torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return []  # an opaque layout keeps its storage to itself


_SAVED: dict[type, list[tuple[str, str]]] = {}


def saved_tensors(node: Node) -> list[tuple[str, torch.Tensor]]:
    """Return the tensors that a node saved for backward, by the attribute without ``_saved_``.

    Raises:
        RuntimeError: one was modified in place, was freed, or has unpack hooks (of a checkpoint or
            an offloader); reading it would run these.
    """
    if isinstance(node, torch.autograd.function.BackwardCFunction):
        _refuse_hooked(node._raw_saved_tensors)
        kept = enumerate(node.saved_tensors)
        return [(str(i), t) for i, t in kept if isinstance(t, torch.Tensor)]
    kind = type(node)
    if kind not in _SAVED:
        # `_raw_saved_x` exists just for those `_saved_x` that hold tensors.
        found = [name for name in dir(node) if name.startswith("_raw_saved_")]
        _SAVED[kind] = [(name, name.removeprefix("_raw_saved_")) for name in found]
    saved: list[tuple[str, torch.Tensor]] = []
    for raw, name in _SAVED[kind]:
        _refuse_hooked(getattr(node, raw))
        value = getattr(node, f"_saved_{name}")
        if isinstance(value, tuple | list):
            several = enumerate(value)
            saved += [(f"{name}[{i}]", t) for i, t in several if isinstance(t, torch.Tensor)]
        elif isinstance(value, torch.Tensor):
            saved.append((name, value))
    return saved


def _refuse_hooked(raw: Any) -> None:
    for saved in raw if isinstance(raw, tuple | list) else (raw,):
        if getattr(saved, "unpack_hook", None) is not None:
            raise RuntimeError("saved with a hook")
