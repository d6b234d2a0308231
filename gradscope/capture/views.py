"""Views and in-place writes: where autograd moves a tensor's history to its base (CopySlices).

An in-place write through any view of a base rebases the full base. The node that a view had when
it was returned may then lie outside the graph, although the loss depends on its values. What the
write lets through to the base before it, cut to the view's region, is that view's gradient.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.graph import Node

from gradscope.capture.gradients import GradientSlot
from gradscope.capture.graph import WRITE, Consumer, Edge, Walk, edge_of

NOTE = "in-place-view"


@dataclass(slots=True)
class ViewOf:
    """The base of a view as it was when the view was seen, and the region that the view covers."""

    edge: Edge
    base: weakref.ref[torch.Tensor]
    version: int
    base_stride: tuple[int, ...]
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int  # from the base's first element
    storage_offset: int

    def base_changed(self) -> bool:
        """Whether the base was written to since; unknown, and no, once nobody holds it."""
        base = self.base()
        return base is not None and base._version != self.version

    def is_made_by(self, node: Any) -> bool:
        """Whether a node is this view as autograd makes it anew after a write."""
        if type(node).__name__ != "AsStridedBackward0":
            return False
        place = (tuple(node._saved_size), tuple(node._saved_stride), node._saved_storage_offset)
        return place == (self.size, tuple(self.stride), self.storage_offset)

    def reader(self, slot: GradientSlot) -> Callable[[torch.Tensor], torch.Tensor | None]:
        """A function that cuts the base's gradient to this region, or spoils ``slot``."""

        def cut(gradient: torch.Tensor) -> torch.Tensor | None:
            if gradient.layout != torch.strided or gradient.stride() != self.base_stride:
                slot.note = NOTE  # the region is unknown: no number rather than a wrong one
                return None
            return gradient.as_strided(
                self.size, self.stride, gradient.storage_offset() + self.offset
            )

        return cut


def view_of(tensor: torch.Tensor) -> ViewOf | None:
    """What to know of a view that requires a gradient; None for any other tensor."""
    if not tensor._is_view() or tensor._base is None or not tensor._base.requires_grad:
        return None
    base = tensor._base
    if base.layout != torch.strided or tensor.layout != torch.strided:
        return None
    return ViewOf(
        edge_of(base),
        weakref.ref(base),
        base._version,
        base.stride(),
        tuple(tensor.shape),
        tensor.stride(),
        int(tensor.storage_offset()) - int(base.storage_offset()),
        int(tensor.storage_offset()),
    )


def is_write(node: Node) -> bool:
    """Whether a node is an in-place write through a view, as its base sees it."""
    return type(node).__name__ == WRITE


def writes_since(consumers: list[Consumer], sequence: int) -> list[Consumer]:
    """Of a base's consumers, the writes through a view that came at ``sequence`` or later."""
    return [c for c in consumers if c.sequence >= sequence and is_write(c.node)]


def read_as_view_only(found: Walk, write: Node, view: ViewOf) -> bool:
    """Whether after a write nobody reads the base itself: only ``view`` goes on, made anew.

    Otherwise what the write lets through belongs in part to others, and the view's gradient cannot
    be distinguished from it.
    """
    consumers = found.consumers.get((write, 0), [])
    while len(consumers) == 1 and is_write(consumers[0].node):
        consumers = found.consumers.get((consumers[0].node, 0), [])
    return not consumers or (len(consumers) == 1 and view.is_made_by(consumers[0].node))
