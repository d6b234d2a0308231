"""Tensors seen before: the same object, unchanged, is measured once and hooked once."""

from __future__ import annotations

import weakref
from dataclasses import dataclass

import torch
from torch.autograd.graph import Node

from gradscope.capture.gradients import GradientHooks, GradientSlot
from gradscope.capture.stats import Measured, measure


@dataclass(slots=True)
class _Measurement:
    tensor: weakref.ref[torch.Tensor]
    version: int
    node: Node | None
    measured: Measured
    slot: GradientSlot | None = None


class MeasurementCache:
    """Measurements of each tensor, and the slot that waits for its gradient.

    A write that PyTorch does not count (through ``.data`` or NumPy) is not noticed.
    """

    def __init__(self, gradient_hooks: GradientHooks) -> None:
        self._gradient_hooks = gradient_hooks
        self._measurements: dict[int, _Measurement] = {}

    def measured(self, tensor: torch.Tensor) -> Measured:
        """The tensor's statistics as it is now."""
        found = self._find(tensor)
        if found is None:
            found = self.remember(tensor, measure(tensor))
        return found.measured

    def slot(self, tensor: torch.Tensor) -> GradientSlot:
        """The slot that a hook on this tensor, as it is now, fills."""
        found = self._find(tensor) or self.remember(tensor, measure(tensor))
        if found.slot is None or found.node is not tensor.grad_fn:
            # `detach_()` and the like give a tensor another history without a new version.
            found.node = tensor.grad_fn
            found.slot = self._gradient_hooks.slot()
            self._gradient_hooks.on_tensor(tensor, found.slot)
        return found.slot

    def forget(self) -> None:
        """Let go of every node."""
        self._measurements.clear()

    def _find(self, tensor: torch.Tensor) -> _Measurement | None:
        found = self._measurements.get(id(tensor))
        same = found is not None and found.tensor() is tensor
        return found if same and found and version(tensor) == found.version >= 0 else None

    def remember(self, tensor: torch.Tensor, measured: Measured) -> _Measurement:
        """Keep the statistics of a tensor, so that it is not measured again."""
        found = _Measurement(weakref.ref(tensor), version(tensor), None, measured)
        self._measurements[id(tensor)] = found
        return found


def is_floating(tensor: torch.Tensor) -> bool:
    """Return True if its numbers can have a gradient: real or complex, not integers."""
    return tensor.is_floating_point() or tensor.is_complex()


def version(tensor: torch.Tensor) -> int:
    """The in-place version counter; -1 where there is none."""
    return -1 if tensor.is_inference() else tensor._version
