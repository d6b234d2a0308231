"""How far up any input like those seen could take each unit of a linear layer: a proof where a
few samples are no evidence."""

from __future__ import annotations

from typing import Any

import torch

from gradscope.explain.shared.operations import Operation, Trait
from gradscope.explain.shared.tensors import memory_of, tensors_in

#: So many rows and more say enough by themselves.
_FEW = 16


class Reach:
    """Follows what linear layers gave of a few rows; ``highest`` answers for such a tensor.

    With weights w and a bias b, no input whose entries lie between l and h, and whose length is n
    at most, gives more than b + min(h·Σw⁺ + l·Σw⁻, n·‖w‖).
    """

    def __init__(self) -> None:
        self._bounds: dict[int, torch.Tensor] = {}  # by the memory of what the layer gave

    def saw(self, operation: Operation, args: tuple[Any, ...], result: Any) -> None:
        """``operation`` made ``result``: a linear layer's is kept, what is written over it ends it.

        A view is of the same memory and the same numbers.
        """
        if operation.has(Trait.RESHAPES):
            return
        for made in tensors_in(result):
            self._bounds.pop(memory_of(made), None)
        if operation.name in ("mm", "addmm") and 0 < len(result) < _FEW:
            bias, x, weight = args if operation.name == "addmm" else (None, *args)
            if x.is_floating_point() and weight.numel():
                self._bounds[memory_of(result)] = _highest(bias, x.float(), weight.float())

    def highest(self, tensor: torch.Tensor, axis: int) -> torch.Tensor | None:
        """A bound for each unit on ``axis``; None where the tensor is no linear layer's result."""
        bound = self._bounds.get(memory_of(tensor))
        fits = bound is not None and axis == tensor.dim() - 1 and len(bound) == tensor.shape[-1]
        return bound if fits else None


@torch.no_grad()
def _highest(bias: torch.Tensor | None, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    low, high = x.aminmax()
    within = high * weight.clamp(min=0).sum(0) + low * weight.clamp(max=0).sum(0)
    bound = torch.minimum(within, x.norm(dim=1).max() * weight.norm(dim=0))
    return bound if bias is None else bound + bias
