"""Remembers tensors: the same unchanged object is measured once and hooked once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.autograd.graph import Node

from gradscope.capture.gradients import GradientHooks, GradientSlot
from gradscope.capture.remembered import RememberedTensor, remembered
from gradscope.capture.stats import Measured, measure


@dataclass(slots=True)
class _Measurement:
    tensor: RememberedTensor
    version: int
    node: Node | None
    measured: Measured
    slot: GradientSlot | None = None


class MeasurementCache:
    """The statistics of each tensor, and the slot for its gradient.

    It misses writes that PyTorch's version counter does not count (through ``.data`` or NumPy).
    """

    def __init__(self, gradient_hooks: GradientHooks) -> None:
        self._gradient_hooks = gradient_hooks
        self._measurements: dict[int, _Measurement] = {}

    def measured(self, tensor: torch.Tensor) -> Measured:
        """Return the statistics of the tensor's present values."""
        found = self._find(tensor)
        if found is None:
            found = self.remember(tensor, measure(tensor))
        return found.measured

    def slot(self, tensor: torch.Tensor) -> GradientSlot:
        """Return the slot for the gradient of this tensor at its present version."""
        found = self._find(tensor) or self.remember(tensor, measure(tensor))
        if found.slot is None or found.node is not tensor.grad_fn:
            # `detach_()` and similar calls change a tensor's graph without a new version.
            found.node = tensor.grad_fn
            found.slot = self._gradient_hooks.slot()
            self._gradient_hooks.on_tensor(tensor, found.slot)
        return found.slot

    def forget(self) -> None:
        """Release every node."""
        self._measurements.clear()

    def _find(self, tensor: torch.Tensor) -> _Measurement | None:
        found = self._measurements.get(id(tensor))
        same = found is not None and found.tensor.is_still(tensor)
        return found if same and found and version(tensor) == found.version >= 0 else None

    def remember(self, tensor: torch.Tensor, measured: Measured) -> _Measurement:
        """Keep the statistics of a tensor, so that it is not measured again."""
        found = _Measurement(remembered(tensor), version(tensor), None, measured)
        self._measurements[id(tensor)] = found
        return found


def is_floating(tensor: torch.Tensor) -> bool:
    """Return True if the tensor can have a gradient: real or complex, not integer."""
    return tensor.is_floating_point() or tensor.is_complex()


def version(tensor: torch.Tensor) -> int:
    """Return the in-place version counter; -1 if there is none."""
    return -1 if tensor.is_inference() else tensor._version
