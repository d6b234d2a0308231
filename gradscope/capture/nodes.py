"""Autograd nodes: their order, stacks and records, and the inputs of a loss or a batch norm."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch.autograd.graph import Node

from gradscope.capture.graph import LEAF, Edge, Span, Walk, owners
from gradscope.records.graph import GraphNode
from gradscope.records.modules import Link

#: Maps an index into the spans to the module's name and its call's number.
Label = Callable[[int], tuple[str, int]]
_Item = TypeVar("_Item", bound=Hashable)


def topological(
    roots: Iterable[_Item],
    following: Callable[[_Item], Iterable[_Item]],
    rank: Callable[[_Item], int],
) -> list[_Item]:
    """Return all items downstream of ``roots`` in topological order; the least ``rank`` comes
    first."""
    roots = list(dict.fromkeys(roots))
    onward: dict[_Item, list[_Item]] = {}
    waiting: Counter[_Item] = Counter()
    stack = list(roots)
    while stack:
        item = stack.pop()
        if item not in onward:
            onward[item] = found = list(following(item))
            waiting.update(found)
            stack += found
    ready = [(rank(item), i, item) for i, item in enumerate(roots) if not waiting[item]]
    heapq.heapify(ready)
    order: list[_Item] = []
    pushed = len(roots)
    while ready:
        item = heapq.heappop(ready)[2]
        order.append(item)
        for after in onward[item]:
            waiting[after] -= 1
            if not waiting[after]:
                pushed += 1  # a tie-break, for nodes do not compare
                heapq.heappush(ready, (rank(after), pushed, after))
    return order


def ordered(roots: Iterable[Node]) -> list[Node]:
    """Return every node upstream of ``roots``, each before the nodes that it leads to, latest
    first.

    A leaf comes right after the last operation that leads to it.
    """
    return topological(roots, upstream, lambda node: -node._sequence_nr())


def upstream(node: Node) -> list[Node]:
    """Return the nodes that a node leads to, one for each edge."""
    return [following for following, _ in node.next_functions if following is not None]


@contextmanager
def stacks_recorded() -> Iterator[None]:
    """Record the Python stack of every node that is made in the block."""
    before = torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()
    # Not by its class, because reading that attribute warns.
    torch.set_anomaly_enabled(True, before[0] and before[1])
    try:
        yield
    finally:
        torch.set_anomaly_enabled(*before)


class NodeStacks:
    """Makes PyTorch keep the Python stacks of nodes for a while, which costs time.

    It changes nothing for a script that already does so (``torch.autograd.set_detect_anomaly``).
    """

    def __init__(self) -> None:
        #: Whether they are kept now.
        self.kept = False

    def begin(self) -> None:
        """Keep the stacks of the nodes that are made from now on."""
        if not (self.kept or torch.is_anomaly_enabled()):
            self._set(True)

    def end(self) -> bool:
        """Stop keeping stacks; return True if they were kept."""
        kept = self.kept
        if kept:
            self._set(False)
        return kept

    def _set(self, on: bool) -> None:
        # Not by its class, which warns.
        torch.set_anomaly_enabled(on, torch.is_anomaly_check_nan_enabled())
        self.kept = on


def stack_of(node: Node) -> Sequence[str]:
    """Return the formatted frames that made a node; empty without a record."""
    metadata: dict[str, Any] = node.metadata  # type: ignore[assignment]  # torch types a method
    return metadata.get("traceback_") or ()


def describe(
    nodes: Sequence[Node],
    spans: Sequence[Span],
    label: Label,
    names: Mapping[int, str],
    *,
    numbers: Mapping[Node, int] | None = None,
) -> list[GraphNode]:
    """Return the nodes as records, numbered in their order or by ``numbers``.

    Args:
        nodes: the nodes, with every node that they lead to.
        spans: the calls' spans, for the module that made each node.
        label: module name and call number of a span's index.
        names: names of parameters and inputs by ``id`` of the leaf tensor.
        numbers: the numbers of these nodes and of the nodes that they lead to.
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


#: Consumers that a link leads into. The data are the first input of each.
INTO = frozenset(
    [
        "LogSoftmaxBackward0",
        "NllLossBackward0",
        "NllLoss2DBackward0",
        "BinaryCrossEntropyBackward0",
        "BinaryCrossEntropyWithLogitsBackward0",
        "NativeBatchNormBackward0",
        "NativeBatchNormLegitBackward0",
        "NativeBatchNormLegitBackward1",
        "BatchNormWithUpdateBackward0",
        "CudnnBatchNormBackward0",
        "MiopenBatchNormBackward0",
        "SyncBatchNormBackward",
    ]
)

#: Operations that only move numbers, by name without the version.
MOVES = frozenset(
    [
        "AliasBackward",
        "AsStridedBackward",
        "ChunkBackward",
        "CloneBackward",
        "DiagonalBackward",
        "ExpandBackward",
        "FlipBackward",
        "GatherBackward",
        "IndexBackward",
        "IndexSelectBackward",
        "LazyCloneBackward",
        "LiftFreshBackward",
        "MaskedSelectBackward",
        "MkldnnReshapeBackward",
        "NarrowCopyBackward",
        "PermuteBackward",
        "ReshapeAliasBackward",
        "ReshapeCopyBackward",
        "RollBackward",
        "SelectBackward",
        "SliceBackward",
        "SplitBackward",
        "SplitWithSizesBackward",
        "SqueezeBackward",
        "TBackward",
        "ToCopyBackward",
        "ToDenseBackward",
        "ToMkldnnBackward",
        "TransposeBackward",
        "UnbindBackward",
        "UnfoldBackward",
        "UnsafeIndexBackward",
        "UnsafeSplitBackward",
        "UnsafeSplitWithSizesBackward",
        "UnsafeViewBackward",
        "UnsqueezeBackward",
        "ViewBackward",
    ]
)
#: `x.copy_(y)`: what it overwrites comes first.
_COPY = "CopyBackwards"


def links(found: Walk, spans: Sequence[Span], label: Label) -> tuple[Link, ...]:
    """Return the producers of the inputs of each loss and each batch norm, in the order of
    forward.

    A tensor that needs no gradient has no node, so a frozen producer is not found.

    Args:
        found: the walk from the loss.
        spans: the calls' spans.
        label: module name and call number of a span's index.
    """
    pairs = _pairs(found)
    made_by = owners([node for pair in pairs for node in pair[:2]], spans)
    names = [label(owner) if owner >= 0 else (None, None) for owner in made_by]
    return tuple(
        Link(
            op=type(producer).__name__,
            into=type(reader).__name__,
            name=names[2 * i][0],
            call=names[2 * i][1],
            into_name=names[2 * i + 1][0],
            into_call=names[2 * i + 1][1],
            shared=shared,
        )
        for i, (producer, reader, shared) in enumerate(pairs)
    )


def located(
    unlocated: Sequence[Link], found: Walk, locate: Callable[[Sequence[str]], str | None]
) -> tuple[Link, ...]:
    """Return the links with the line of each producer, from a second run under anomaly mode;
    unchanged if that run computed something else.

    Args:
        unlocated: the links without lines.
        found: the walk from the loss of the run in which each node kept its stack.
        locate: finds the user's line in a stack of formatted frames.
    """
    pairs = _pairs(found)
    same = [(type(producer).__name__, type(reader).__name__) for producer, reader, _ in pairs]
    if same != [(link.op, link.into) for link in unlocated]:
        return tuple(unlocated)
    stacks = [stack_of(producer) for producer, _, _ in pairs]
    return tuple(
        replace(link, location=locate(stack) if stack else None)
        for link, stack in zip(unlocated, stacks, strict=True)
    )


def _pairs(found: Walk) -> list[tuple[Node, Node, bool]]:
    """Yield producer, reader, and whether others read the same result, in the order of forward."""
    readers = [node for node in found.nodes if type(node).__name__ in INTO]
    readers.sort(key=lambda node: node._sequence_nr())
    pairs = []
    for reader in readers:
        producer, shared = _producer(reader, found)
        if producer is not None:
            pairs.append((producer, reader, shared))
    return pairs


def _producer(reader: Node, found: Walk) -> tuple[Node | None, bool]:
    """Return the operation that computed ``reader``'s input, and True if others read it too."""
    shared, position, node = False, 0, reader
    while True:
        following = node.next_functions
        if len(following) <= position:
            return None, shared
        after, number = following[position]
        if after is None or isinstance(after, LEAF):
            return None, shared
        edge: Edge = (after, number)
        shared = shared or len(found.consumers.get(edge, ())) > 1
        name = type(after).__name__
        if name == _COPY:
            position = 1
        elif name.rstrip("0123456789") in MOVES:
            position = 0
        else:
            return after, shared
        node = after
