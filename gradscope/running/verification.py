"""The proof of harmlessness: two plain steps and one observed, all seeded alike, bit by bit."""

from __future__ import annotations

from collections.abc import Callable

import torch

from gradscope.records.run import Verification

Gradients = list[torch.Tensor | None]


class Verifier:
    """Holds the gradients of a plain step and what a second plain step differed by."""

    def __init__(self, plain_step: Callable[[], Gradients]) -> None:
        self._first = plain_step()
        self._repeatable = _difference(self._first, plain_step()) == 0.0

    def compare(self, observed: Gradients) -> Verification:
        """The verdict on the observed step."""
        difference = _difference(self._first, observed)
        return Verification(self._repeatable, difference == 0.0, difference)


def _difference(left: Gradients, right: Gradients) -> float | None:
    """The largest absolute difference; 0.0 only if every bit agrees, None if it has no size."""
    largest = 0.0
    for one, other in zip(left, right, strict=True):
        if one is None or other is None:
            if one is not other:
                return None
            continue
        one, other = (t.to_dense() if t.layout != torch.strided else t for t in (one, other))
        if one.shape != other.shape or one.dtype != other.dtype:
            return None
        if same_bits(one, other):
            continue
        wide = torch.complex128 if one.is_complex() else torch.float64
        gap = (one.to(wide) - other.to(wide)).abs()
        if not bool(torch.isfinite(gap).all()):
            return None
        largest = max(largest, gap.max().item(), torch.finfo(torch.float64).tiny)
    return largest


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of one shape and dtype agree in every bit, as far as can be seen."""
    if any(t.layout != torch.strided or t.is_quantized for t in (one, other)):
        return False
    # Viewed as bytes, equal NaNs are equal and 0.0 differs from -0.0.
    return torch.equal(_bytes(one), _bytes(other))


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
