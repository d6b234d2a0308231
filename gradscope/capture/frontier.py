"""Find the autograd nodes that carry a gradient into a call, for all calls from one walk.

An in-place write through a view of a base gives the full base a new node (CopySlices). The view's
earlier node may then be outside the graph, although the loss depends on its values. The gradient
that the write passes to the base, cut to the view's region, is that view's gradient.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.graph import Node

from gradscope.capture.gradients import GradientHooks, GradientSlot
from gradscope.capture.graph import WRITE, Consumer, Edge, Walk, edge_of
from gradscope.capture.remembered import RememberedTensor, remembered
from gradscope.capture.stats import Measured

NOTE = "in-place-view"


@dataclass(slots=True)
class ViewOf:
    """The base of a view at the time of its record, and the region that the view covers."""

    edge: Edge
    base: RememberedTensor
    version: int
    base_stride: tuple[int, ...]
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int  # from the base's first element
    storage_offset: int

    def base_changed(self) -> bool:
        """True if the base was written to since; False also once the base is freed."""
        base = self.base()
        return base is not None and base._version != self.version

    def is_made_by(self, node: Any) -> bool:
        """Return True if the node is this view as autograd recreates it after a write."""
        if type(node).__name__ != "AsStridedBackward0":
            return False
        place = (tuple(node._saved_size), tuple(node._saved_stride), node._saved_storage_offset)
        return place == (self.size, tuple(self.stride), self.storage_offset)

    def reader(self, slot: GradientSlot) -> Callable[[torch.Tensor], torch.Tensor | None]:
        """Return a function that cuts the base's gradient to this region, or marks ``slot`` as
        unknown."""

        def cut(gradient: torch.Tensor) -> torch.Tensor | None:
            if gradient.layout != torch.strided or gradient.stride() != self.base_stride:
                slot.note = NOTE  # the region is unknown, so give no number
                return None
            return gradient.as_strided(
                self.size, self.stride, gradient.storage_offset() + self.offset
            )

        return cut


def view_of(tensor: torch.Tensor) -> ViewOf | None:
    """Return the facts on a view that requires a gradient; None for any other tensor."""
    if not tensor._is_view() or tensor._base is None or not tensor._base.requires_grad:
        return None
    base = tensor._base
    if base.layout != torch.strided or base.is_nested or tensor.layout != torch.strided:
        return None
    return ViewOf(
        edge_of(base),
        remembered(base),
        base._version,
        base.stride(),
        tuple(tensor.shape),
        tensor.stride(),
        int(tensor.storage_offset()) - int(base.storage_offset()),
        int(tensor.storage_offset()),
    )


def is_write(node: Node) -> bool:
    """Return True if a node is an in-place write through a view, as its base records it."""
    return type(node).__name__ == WRITE


def writes_since(consumers: list[Consumer], sequence: int) -> list[Consumer]:
    """Return a base's consumers that are writes through a view at ``sequence`` or later."""
    return [c for c in consumers if c.sequence >= sequence and is_write(c.node)]


def read_as_view_only(found: Walk, write: Node, view: ViewOf) -> bool:
    """Return True if only the recreated ``view`` reads the base after a write.

    Otherwise a part of the gradient that passes the write belongs to other readers, and the view's
    part is unknown.
    """
    consumers = found.consumers.get((write, 0), [])
    while len(consumers) == 1 and is_write(consumers[0].node):
        consumers = found.consumers.get((consumers[0].node, 0), [])
    return not consumers or (len(consumers) == 1 and view.is_made_by(consumers[0].node))


#: The loss contains a gradient that was taken through this call.
INNER = "inner-backward"


@dataclass(slots=True)
class ObservedTensor:
    """Facts on a tensor that a call took or returned, without the tensor."""

    path: str
    measured: Measured
    requires_grad: bool
    grad_fn: str | None
    edge: Edge | None = None
    view: ViewOf | None = None
    slot: GradientSlot | None = None


@dataclass(frozen=True, slots=True)
class CallSpan:
    """One call in the graph: its tensors, and the sequence numbers of its nodes."""

    start: int
    end: int
    inputs: list[ObservedTensor]
    outputs: list[ObservedTensor]


def wanted_edges(call_spans: Iterable[CallSpan]) -> set[Edge]:
    """Return the edges whose consumers ``assign_gradient_slots`` needs."""
    observed = [item for call in call_spans for item in (*call.inputs, *call.outputs)]
    own = {item.edge for item in observed if item.edge is not None}
    return own | {item.view.edge for item in observed if item.view is not None}


def assign_gradient_slots(
    found: Walk, call_spans: list[CallSpan], gradient_hooks: GradientHooks
) -> None:
    """Give every input its slot, and complete the slots of outputs that are written to as views.

    If a call made a consumer of its input's edge, that consumer is the call's frontier: its
    gradient for the edge is the gradient through this call alone.
    """
    by_edge: dict[Edge, GradientSlot] = {}
    complete: dict[int, bool] = {}  # by slot: True if the tensor's own hook gives the full gradient
    for call in call_spans:
        for observed in call.outputs:
            if observed.slot is None or observed.edge is None or id(observed.slot) in complete:
                continue
            complete[id(observed.slot)] = _complete_at_its_hook(
                found, observed, observed.slot, call, gradient_hooks
            )
            if complete[id(observed.slot)] and observed.slot.shareable:
                by_edge[observed.edge] = observed.slot
    shared: dict[tuple[tuple[int, int], ...], GradientSlot] = {}
    for call in call_spans:
        views = {
            observed.view.edge
            for observed in call.outputs
            if observed.view is not None
            and observed.slot is not None
            and not complete[id(observed.slot)]
        }
        inner = any(observed.slot and observed.slot.differentiated for observed in call.outputs)
        for observed in call.inputs:
            if observed.edge is None or observed.slot is not None:
                continue
            note = _untraceable(found, observed, observed.edge, views, inner) or _crowded(
                found, observed, call
            )
            if note:
                observed.slot = gradient_hooks.slot()
                observed.slot.note = note
            else:
                observed.slot = _frontier(
                    found, observed, observed.edge, call, by_edge, shared, gradient_hooks
                )


def _untraceable(
    found: Walk, observed: ObservedTensor, edge: Edge, views: set[Edge], inner: bool
) -> str | None:
    """Return why the graph cannot give an input's gradient through the call; None if it can.

    ``views`` are the bases of outputs that were written to. If the output is a view of the input,
    its gradient goes through the base, not through the call.
    """
    if edge in views or (observed.view is not None and observed.view.edge in views):
        return NOTE
    # Nodes of an inner backward belong to no call, so part of the gradient would be missing.
    return INNER if inner and found.reaches(edge) else None


def _crowded(found: Walk, observed: ObservedTensor, call: CallSpan) -> str | None:
    """Return a note if a call got several views of a base and writes into it: the write may belong
    to any of them."""
    if observed.view is None:
        return None
    base = observed.view.edge
    siblings = [
        other
        for other in call.inputs
        if other.edge == base or (other.view is not None and other.view.edge == base)
    ]
    readers = between(found.consumers.get(observed.view.edge, []), call.start, call.end)
    return NOTE if len(siblings) > 1 and writes_since(readers, call.start) else None


def _complete_at_its_hook(
    found: Walk,
    observed: ObservedTensor,
    slot: GradientSlot,
    call: CallSpan,
    gradient_hooks: GradientHooks,
) -> bool:
    """Return True if the tensor's hook gives its full gradient; else observe the writes as well."""
    if observed.view is None:
        return True
    readers = found.consumers.get(observed.view.edge, [])
    writes = writes_since(readers, call.end)
    if not writes:
        if observed.view.base_changed() or _written_and_read(observed, call, readers):
            slot.note = NOTE
        return slot.note is None
    if not all(read_as_view_only(found, write.node, observed.view) for write in writes):
        slot.note = NOTE
        return False
    slot.parts = len(writes) + int(observed.edge is not None and found.reaches(observed.edge))
    for write in writes:
        gradient_hooks.on_node(write.node, write.position, slot, observed.view.reader(slot))
    return False


def _written_and_read(observed: ObservedTensor, call: CallSpan, readers: list[Consumer]) -> bool:
    """Return True if the call wrote its result into a base that others read, not through this
    view."""
    base, own = (
        observed.view.edge[0] if observed.view else 0,
        observed.edge[0] if observed.edge else 0,
    )
    if isinstance(base, int) or not is_write(base):
        return False
    made_here = call.start <= base._sequence_nr() < call.end
    return made_here and any(reader.node is not own for reader in readers)


def _frontier(
    found: Walk,
    observed: ObservedTensor,
    edge: Edge,
    call: CallSpan,
    by_edge: dict[Edge, GradientSlot],
    shared: dict[tuple[tuple[int, int], ...], GradientSlot],
    gradient_hooks: GradientHooks,
) -> GradientSlot | None:
    everyone = found.consumers.get(edge, [])
    inside = between(everyone, call.start, call.end)
    writes: list[Consumer] = []
    if observed.view is not None:
        near = between(found.consumers.get(observed.view.edge, []), call.start, call.end)
        writes = writes_since(near, call.start)
    if not inside and not writes:
        return None
    if len(inside) == len(everyone) and not writes and edge in by_edge:
        return by_edge[edge]  # all consumers of a recorded output: the same tensor, added up
    key = tuple((id(c.node), c.position) for c in inside)
    if key in shared and not writes:
        return shared[key]
    slot = gradient_hooks.slot(len(inside) + len(writes))
    for consumer in inside:
        gradient_hooks.on_node(consumer.node, consumer.position, slot)
    if observed.view is not None:
        for write in writes:
            gradient_hooks.on_node(write.node, write.position, slot, observed.view.reader(slot))
    if not writes:
        shared[key] = slot
    return slot


def between(consumers: list[Consumer], start: int, end: int) -> list[Consumer]:
    """Return the consumers with sequence numbers from ``start`` up to, but without, ``end``; they
    are sorted."""
    low = bisect_left(consumers, start, key=lambda c: c.sequence)
    return consumers[low : bisect_left(consumers, end, key=lambda c: c.sequence)]
