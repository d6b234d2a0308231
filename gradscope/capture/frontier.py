"""Which autograd nodes carry a gradient into a call: found for all calls from one walk."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass

from gradscope.capture.gradients import GradientSlot, Listeners
from gradscope.capture.graph import Consumer, Edge, Walk
from gradscope.capture.stats import Measured
from gradscope.capture.views import NOTE, ViewOf, is_write, read_as_view_only, writes_since

#: The loss contains a gradient that was taken through this call.
INNER = "inner-backward"


@dataclass(slots=True)
class Met:
    """A tensor that a call took or returned: what was seen of it, without the tensor."""

    path: str
    measured: Measured
    requires_grad: bool
    grad_fn: str | None
    edge: Edge | None = None
    view: ViewOf | None = None
    slot: GradientSlot | None = None


@dataclass(frozen=True, slots=True)
class Passage:
    """One call as the graph sees it: its tensors, and the sequence numbers of its nodes."""

    start: int
    end: int
    inputs: list[Met]
    outputs: list[Met]


def wanted_edges(passages: Iterable[Passage]) -> set[Edge]:
    """The edges whose consumers ``tie`` needs to know."""
    met = [item for passage in passages for item in (*passage.inputs, *passage.outputs)]
    own = {item.edge for item in met if item.edge is not None}
    return own | {item.view.edge for item in met if item.view is not None}


def tie(found: Walk, passages: list[Passage], listeners: Listeners) -> None:
    """Give every input its slot, and complete the slots of outputs that are written to as views.

    A consumer of an input's edge that the call itself made is that call's frontier: what it sends
    down that edge is the gradient through this call alone.
    """
    by_edge: dict[Edge, GradientSlot] = {}
    told: dict[int, bool] = {}  # by slot: does the tensor's own hook tell the whole gradient?
    for passage in passages:
        for met in passage.outputs:
            if met.slot is None or met.edge is None or id(met.slot) in told:
                continue
            told[id(met.slot)] = _told_by_its_hook(found, met, met.slot, passage, listeners)
            if told[id(met.slot)] and met.slot.shareable:
                by_edge[met.edge] = met.slot
    shared: dict[tuple[tuple[int, int], ...], GradientSlot] = {}
    for passage in passages:
        views = {
            met.view.edge
            for met in passage.outputs
            if met.view is not None and met.slot is not None and not told[id(met.slot)]
        }
        inner = any(met.slot and met.slot.differentiated for met in passage.outputs)
        for met in passage.inputs:
            if met.edge is None or met.slot is not None:
                continue
            note = _untold(found, met, met.edge, views, inner) or _crowded(found, met, passage)
            if note:
                met.slot = listeners.slot()
                met.slot.note = note
            else:
                met.slot = _frontier(found, met, met.edge, passage, by_edge, shared, listeners)


def _untold(found: Walk, met: Met, edge: Edge, views: set[Edge], inner: bool) -> str | None:
    """Why an input's gradient through the call cannot be read off the graph, if it cannot.

    ``views`` are the bases of what the call returned and somebody wrote to: a view of the input
    itself then gets its gradient past the call, by way of the base.
    """
    if edge in views or (met.view is not None and met.view.edge in views):
        return NOTE
    # The nodes of an inner backward belong to no call: part of the gradient would be missing.
    return INNER if inner and found.reaches(edge) else None


def _crowded(found: Walk, met: Met, passage: Passage) -> str | None:
    """Whether a call that writes into a base was given several views of it: whose is the write?"""
    if met.view is None:
        return None
    base = met.view.edge
    siblings = [
        other
        for other in passage.inputs
        if other.edge == base or (other.view is not None and other.view.edge == base)
    ]
    readers = between(found.consumers.get(met.view.edge, []), passage.start, passage.end)
    return NOTE if len(siblings) > 1 and writes_since(readers, passage.start) else None


def _told_by_its_hook(
    found: Walk, met: Met, slot: GradientSlot, passage: Passage, listeners: Listeners
) -> bool:
    """Whether the tensor's hook tells its whole gradient; if not, listen to the writes as well."""
    if met.view is None:
        return True
    readers = found.consumers.get(met.view.edge, [])
    writes = writes_since(readers, passage.end)
    if not writes:
        if met.view.base_changed() or _written_and_read(met, passage, readers):
            slot.note = NOTE
        return slot.note is None
    if not all(read_as_view_only(found, write.node, met.view) for write in writes):
        slot.note = NOTE
        return False
    slot.parts = len(writes) + int(met.edge is not None and found.reaches(met.edge))
    for write in writes:
        listeners.on_node(write.node, write.position, slot, met.view.reader(slot))
    return False


def _written_and_read(met: Met, passage: Passage, readers: list[Consumer]) -> bool:
    """Whether the call wrote its result into a base that others then read past this view."""
    base, own = met.view.edge[0] if met.view else 0, met.edge[0] if met.edge else 0
    if isinstance(base, int) or not is_write(base):
        return False
    made_here = passage.start <= base._sequence_nr() < passage.end
    return made_here and any(reader.node is not own for reader in readers)


def _frontier(
    found: Walk,
    met: Met,
    edge: Edge,
    passage: Passage,
    by_edge: dict[Edge, GradientSlot],
    shared: dict[tuple[tuple[int, int], ...], GradientSlot],
    listeners: Listeners,
) -> GradientSlot | None:
    everyone = found.consumers.get(edge, [])
    inside = between(everyone, passage.start, passage.end)
    writes: list[Consumer] = []
    if met.view is not None:
        near = between(found.consumers.get(met.view.edge, []), passage.start, passage.end)
        writes = writes_since(near, passage.start)
    if not inside and not writes:
        return None
    if len(inside) == len(everyone) and not writes and edge in by_edge:
        return by_edge[edge]  # all that a recorded output went into: the same tensor, added up
    key = tuple((id(c.node), c.position) for c in inside)
    if key in shared and not writes:
        return shared[key]
    slot = listeners.slot(len(inside) + len(writes))
    for consumer in inside:
        listeners.on_node(consumer.node, consumer.position, slot)
    if met.view is not None:
        for write in writes:
            listeners.on_node(write.node, write.position, slot, met.view.reader(slot))
    if not writes:
        shared[key] = slot
    return slot


def between(consumers: list[Consumer], start: int, end: int) -> list[Consumer]:
    """The consumers made from ``start`` up to before ``end``, of those sorted by sequence."""
    low = bisect_left(consumers, start, key=lambda c: c.sequence)
    return consumers[low : bisect_left(consumers, end, key=lambda c: c.sequence)]
