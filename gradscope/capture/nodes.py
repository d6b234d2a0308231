"""Autograd nodes as records: what each is, its shape, which call made it, where it leads."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch.autograd.graph import Node

from gradscope.capture.graph import LEAF, Span, owners
from gradscope.records.graph import GraphNode

#: Of an index into the spans: the module's name and the number of its call.
Label = Callable[[int], tuple[str, int]]


def ordered(roots: Iterable[Node]) -> list[Node]:
    """Every node upstream of ``roots``, each before those that it leads to, the latest made first.

    A leaf follows the first operation that leaves nobody else to wait for.
    """
    roots = list(dict.fromkeys(roots))
    waiting = _consumers(roots)
    ready = [(-node._sequence_nr(), i, node) for i, node in enumerate(roots) if not waiting[node]]
    heapq.heapify(ready)
    found: list[Node] = []
    pushed = len(roots)
    while ready:
        node = heapq.heappop(ready)[2]
        found.append(node)
        for following, _ in node.next_functions:
            if following is None:
                continue
            waiting[following] -= 1
            if not waiting[following]:
                pushed += 1  # a tie-break, for nodes do not compare
                heapq.heappush(ready, (-following._sequence_nr(), pushed, following))
    return found


def _consumers(roots: Sequence[Node]) -> Counter[Node]:
    """How many edges lead to each node."""
    waiting: Counter[Node] = Counter()
    seen = set(roots)
    stack = list(roots)
    while stack:
        for following, _ in stack.pop().next_functions:
            if following is None:
                continue
            waiting[following] += 1
            if following not in seen:
                seen.add(following)
                stack.append(following)
    return waiting


def describe(
    nodes: Sequence[Node],
    spans: Sequence[Span],
    label: Label,
    names: Mapping[int, str],
    *,
    numbers: Mapping[Node, int] | None = None,
) -> list[GraphNode]:
    """The nodes as records, numbered in their order or by ``numbers``.

    Args:
        nodes: with every node that they lead to.
        spans: the calls' spans, for the module that made each node.
        label: module name and call number of a span's index.
        names: names of parameters and inputs by ``id`` of the leaf tensor.
        numbers: of these nodes and those that they lead to.
    """
    number = {node: i for i, node in enumerate(nodes)} if numbers is None else numbers
    result = []
    for node, made_by in zip(nodes, owners(nodes, spans), strict=True):
        leaf = node.variable if isinstance(node, LEAF) else None
        module, call = label(made_by) if made_by >= 0 and leaf is None else (None, None)
        result.append(
            GraphNode(
                id=number[node],
                op=type(node).__name__,
                kind=_kind(leaf),
                name=None if leaf is None else names.get(id(leaf)),
                module=module,
                call=call,
                shape=_shape(node, leaf),
                to=tuple(
                    (number[following], position) if following is not None else None
                    for following, position in node.next_functions
                ),
            )
        )
    return result


def _kind(leaf: torch.Tensor | None) -> str:
    if leaf is None:
        return "function"
    return "parameter" if isinstance(leaf, torch.nn.Parameter) else "input"


def _shape(node: Node, leaf: torch.Tensor | None) -> tuple[int, ...] | None:
    if leaf is not None:
        return tuple(leaf.shape)
    metadata = node._input_metadata
    return tuple(int(n) for n in metadata[0].shape) if metadata else None
