"""Which operation's result goes into a loss or a batch norm: read off the one walk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch.autograd.graph import Node

from gradscope.capture.graph import LEAF, Edge, Span, Walk, owners
from gradscope.capture.nodes import Label
from gradscope.records.modules import Link

#: What a link leads into. The data are the first input of each.
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

#: Operations that move numbers and change none, without the version in their names.
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
    """The producer of what went into each loss and each batch norm, in the order of forward.

    What needs no gradient has no node, so a frozen producer is not found.

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
    """The links of a run with the line that made each producer, from the same run under anomaly
    mode; as they are where that run computed something else.

    Args:
        unlocated: the links without lines.
        found: the walk from the loss of the run in which each node kept its stack.
        locate: the user's line in a stack of formatted frames.
    """
    pairs = _pairs(found)
    same = [(type(producer).__name__, type(reader).__name__) for producer, reader, _ in pairs]
    if same != [(link.op, link.into) for link in unlocated]:
        return tuple(unlocated)
    lines = []
    for producer, _, _ in pairs:
        kept: dict[str, Any] = producer.metadata  # type: ignore[assignment]  # torch types a method
        stack = kept.get("traceback_")
        lines.append(locate(stack) if stack else None)
    return tuple(replace(link, location=line) for link, line in zip(unlocated, lines, strict=True))


def _pairs(found: Walk) -> list[tuple[Node, Node, bool]]:
    """Producer and reader, and whether others read the same, in the order of forward."""
    readers = [node for node in found.nodes if type(node).__name__ in INTO]
    readers.sort(key=lambda node: node._sequence_nr())
    pairs = []
    for reader in readers:
        producer, shared = _producer(reader, found)
        if producer is not None:
            pairs.append((producer, reader, shared))
    return pairs


def _producer(reader: Node, found: Walk) -> tuple[Node | None, bool]:
    """The operation that computed what ``reader`` took, and whether others are known to read it."""
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
