"""How far apart two tensors are, in float64."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Difference:
    """Of ``b`` from ``a``.

    Attributes:
        error: ‖b − a‖ / ‖a‖, L2; infinite where only ``a`` is all zeros, or where one has a NaN or
            an infinity that the other does not have.
        cosine: between the two; None where one is all zeros.
        largest: the largest of the elements' absolute differences.
        scale: by which share of itself ``a`` would have to grow to come closest to ``b``. Rounding
            goes both ways, and leaves it near zero where the error is not.
    """

    error: float
    cosine: float | None
    largest: float
    scale: float = 0.0


def difference(a: torch.Tensor, b: torch.Tensor) -> Difference:
    """Of two tensors of one shape, whatever their dtypes and devices."""
    dtype = torch.complex128 if a.is_complex() or b.is_complex() else torch.float64
    a, b = (t.detach().to(b.device, dtype).reshape(-1) for t in (a, b))
    finite = torch.isfinite(a) & torch.isfinite(b)
    if not bool(finite.all()):
        # Masks hold infinities that are meant: what both have in one place differs in nothing.
        same = (a == b) | (a.isnan() & b.isnan()) | finite
        if not bool(same.all()):
            return Difference(math.inf, None, math.inf)
        a, b = a[finite], b[finite]
    if not a.numel():
        return Difference(0.0, None, 0.0)
    gap = (b - a).abs()
    largest = float(gap.max())
    if largest == 0.0:
        return Difference(0.0, 1.0 if bool(a.any()) else None, 0.0)
    # Scaled first: the squares of small gradients are zero in no dtype then.
    of_a, of_b = float(a.abs().max()), float(b.abs().max())
    norm = float(torch.linalg.vector_norm(gap / largest)) * largest
    if of_a == 0.0 or of_b == 0.0:
        return Difference(1.0 if of_a else math.inf, None, largest)
    along = float(torch.sum(a.conj() / of_a * ((b - a) / largest)).real)
    a, b = a / of_a, b / of_b
    norm_a, norm_b = (float(torch.linalg.vector_norm(t)) for t in (a, b))
    cosine = float(torch.sum(a.conj() * b).real) / (norm_a * norm_b)
    scale = along / norm_a**2 * (largest / of_a)
    return Difference(norm / (norm_a * of_a), max(-1.0, min(1.0, cosine)), largest, scale)
