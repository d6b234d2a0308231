"""The arithmetic that made NaN and Inf, in words, with the values that were combined.

What one operation of PyTorch's core does is in ``elements`` (one element at a time) and
``reductions`` (rows, sums, products of matrices).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Reason:
    """A reason, the smallest fix, and how many elements of how many it made."""

    text: str
    advice: str | None = None
    count: int | None = None
    total: int = 0

    @property
    def counted(self) -> str:
        """The reason, and how many of how many where it is about more than one."""
        if self.count is None or self.total <= 1:
            return self.text
        return f"{self.text} ({self.count} of {self.total} values)"


@dataclass(frozen=True, slots=True)
class NonFiniteResult:
    """One operation, as far as it explains itself.

    Attributes:
        name: without underscores: ``log``, ``softmax``, ``addmm``.
        arguments: by the names of the schema; tensors as they were before.
        out: what it made that is NaN or Inf.
        kind: the level of ``out``.
        pointwise: each element is made of those at its own place.
    """

    name: str
    arguments: dict[str, Any]
    out: torch.Tensor
    kind: int
    pointwise: bool

    def tensors(self) -> list[torch.Tensor]:
        """The floating-point tensors among the arguments."""
        return [t for t in self.arguments.values() if isinstance(t, torch.Tensor) and _floating(t)]

    def number(self, name: str, default: float) -> float:
        """An argument that is a number."""
        value = self.arguments.get(name)
        return float(value) if isinstance(value, int | float) else default


Explainer = Callable[[NonFiniteResult], Reason | None]


def spelled(value: float) -> str:
    """A value as a reader takes it in: ``70000``, ``-1e-09``, ``104.2``."""
    if math.isfinite(value) and value == int(value) and abs(value) < 1e7:
        return str(int(value))
    return f"{value:.4g}"


def largest(dtype: torch.dtype) -> str:
    """The largest number of a dtype, with its name: ``float16's largest 65504``."""
    top = torch.finfo(dtype).max
    text = spelled(top) if top < 1e6 else f"{top:.2g}"
    return f"{str(dtype).removeprefix('torch.')}'s largest {text}"


def magnitude(tensor: torch.Tensor) -> float:
    """The largest finite magnitude; 0 of nothing."""
    values = (tensor.detach().abs() if tensor.is_complex() else tensor.detach()).double()
    finite = values[torch.isfinite(values)]
    return float(finite.abs().max()) if finite.numel() else 0.0


def wider(dtype: torch.dtype) -> str:
    """What to do where numbers leave a dtype."""
    if dtype in (torch.float16, torch.float8_e4m3fn, torch.float8_e5m2):
        return "compute this in float32 or bfloat16, or make the values smaller before it"
    return "make the values smaller before it: normalise, lower the learning rate, clip gradients"


def _floating(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()
