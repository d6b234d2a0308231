"""Which axis of a tensor holds its units: by the operation that last made such a shape."""

from __future__ import annotations

from typing import Any

import torch

from gradscope.explain.shared.operations import Operation, Trait


class Channels:
    """Follows shapes through a run; ``axis`` answers for a tensor of one of them."""

    def __init__(self) -> None:
        self._axes: dict[tuple[int, ...], int] = {}

    def saw(self, operation: Operation, given: Any, result: Any) -> None:
        """``operation`` made ``result``, or a tuple that begins with it, of ``given``."""
        made = result[0] if isinstance(result, tuple | list) and result else result
        if not isinstance(made, torch.Tensor) or made.dim() < 2:
            return
        if operation.has(Trait.CHANNELS):
            self._axes[tuple(made.shape)] = 1
        elif operation.has(Trait.FEATURES):
            self._axes[tuple(made.shape)] = made.dim() - 1
        elif operation.has(Trait.RESHAPES) and isinstance(given, torch.Tensor) and given.dim() > 1:
            before = self._axes.get(tuple(given.shape))
            if before == given.dim() - 1 and given.shape[-1] == made.shape[-1]:
                self._axes[tuple(made.shape)] = made.dim() - 1

    def axis(self, tensor: torch.Tensor) -> int:
        """The axis of the units; without a sign, pictures have theirs second and the rest last."""
        known = self._axes.get(tuple(tensor.shape))
        if known is not None:
            return known
        return 1 if tensor.dim() in (4, 5) else tensor.dim() - 1
