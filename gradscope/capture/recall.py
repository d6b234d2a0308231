"""Tensors met before: the same object, unchanged, is measured once and hooked once."""

from __future__ import annotations

import weakref
from dataclasses import dataclass

import torch
from torch.autograd.graph import Node

from gradscope.capture.gradients import GradientSlot, Listeners
from gradscope.capture.stats import Measured, measure


@dataclass(slots=True)
class _Known:
    tensor: weakref.ref[torch.Tensor]
    version: int
    node: Node | None
    measured: Measured
    slot: GradientSlot | None = None


class Recall:
    """What was measured of each tensor, and the slot that waits for its gradient.

    A write that PyTorch does not count (through ``.data`` or NumPy) is not seen.
    """

    def __init__(self, listeners: Listeners) -> None:
        self._listeners = listeners
        self._known: dict[int, _Known] = {}

    def measured(self, tensor: torch.Tensor) -> Measured:
        """The tensor's statistics as it is now."""
        known = self._find(tensor)
        if known is None:
            known = self.remember(tensor, measure(tensor))
        return known.measured

    def slot(self, tensor: torch.Tensor) -> GradientSlot:
        """The slot that a hook on this tensor, as it is now, fills."""
        known = self._find(tensor) or self.remember(tensor, measure(tensor))
        if known.slot is None or known.node is not tensor.grad_fn:
            # `detach_()` and the like give a tensor another history without a new version.
            known.node = tensor.grad_fn
            known.slot = self._listeners.slot()
            self._listeners.on_tensor(tensor, known.slot)
        return known.slot

    def forget(self) -> None:
        """Let go of every node."""
        self._known.clear()

    def _find(self, tensor: torch.Tensor) -> _Known | None:
        known = self._known.get(id(tensor))
        same = known is not None and known.tensor() is tensor
        return known if same and known and version(tensor) == known.version >= 0 else None

    def remember(self, tensor: torch.Tensor, measured: Measured) -> _Known:
        """Keep what is known of a tensor, so that it is not measured again."""
        known = _Known(weakref.ref(tensor), version(tensor), None, measured)
        self._known[id(tensor)] = known
        return known


def version(tensor: torch.Tensor) -> int:
    """The in-place version counter; -1 where there is none."""
    return -1 if tensor.is_inference() else tensor._version
