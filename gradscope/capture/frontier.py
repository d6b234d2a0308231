"""Which autograd nodes carry a gradient into a call: found for all calls from one walk."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass

from gradscope.capture.gradients import GradientHooks, GradientSlot
from gradscope.capture.graph import Consumer, Edge, Walk
from gradscope.capture.stats import Measured
from gradscope.capture.views import NOTE, ViewOf, is_write, read_as_view_only, writes_since

#: The loss contains a gradient that was taken through this call.
INNER = "inner-backward"


@dataclass(slots=True)
class ObservedTensor:
    """A tensor that a call took or returned: what was seen of it, without the tensor."""

    path: str
    measured: Measured
    requires_grad: bool
    grad_fn: str | None
    edge: Edge | None = None
    view: ViewOf | None = None
    slot: GradientSlot | None = None


@dataclass(frozen=True, slots=True)
class CallSpan:
    """One call as the graph sees it: its tensors, and the sequence numbers of its nodes."""

    start: int
    end: int
    inputs: list[ObservedTensor]
    outputs: list[ObservedTensor]


def wanted_edges(call_spans: Iterable[CallSpan]) -> set[Edge]:
    """The edges whose consumers ``assign_gradient_slots`` needs to know."""
    observed = [item for call in call_spans for item in (*call.inputs, *call.outputs)]
    own = {item.edge for item in observed if item.edge is not None}
    return own | {item.view.edge for item in observed if item.view is not None}


def assign_gradient_slots(
    found: Walk, call_spans: list[CallSpan], gradient_hooks: GradientHooks
) -> None:
    """Give every input its slot, and complete the slots of outputs that are written to as views.

    A consumer of an input's edge that the call itself made is that call's frontier: what it sends
    down that edge is the gradient through this call alone.
    """
    by_edge: dict[Edge, GradientSlot] = {}
    complete: dict[int, bool] = {}  # by slot: does the tensor's own hook tell the full gradient?
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
    """Why an input's gradient through the call cannot be read off the graph, if it cannot.

    ``views`` are the bases of what the call returned and somebody wrote to: a view of the input
    itself then gets its gradient past the call, by way of the base.
    """
    if edge in views or (observed.view is not None and observed.view.edge in views):
        return NOTE
    # The nodes of an inner backward belong to no call: part of the gradient would be missing.
    return INNER if inner and found.reaches(edge) else None


def _crowded(found: Walk, observed: ObservedTensor, call: CallSpan) -> str | None:
    """Whether a call that writes into a base was given several views of it: whose is the write?"""
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
    """Whether the tensor's hook tells its full gradient; if not, observe the writes as well."""
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
    """Whether the call wrote its result into a base that others then read past this view."""
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
        return by_edge[edge]  # all that a recorded output went into: the same tensor, added up
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
    """The consumers made from ``start`` up to before ``end``, of those sorted by sequence."""
    low = bisect_left(consumers, start, key=lambda c: c.sequence)
    return consumers[low : bisect_left(consumers, end, key=lambda c: c.sequence)]
