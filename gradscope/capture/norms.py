"""Norms of many gradients at once, as cheap as reading them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from gradscope.capture.stats import BLOCK


@torch.no_grad()
def gradient_norms(gradients: Sequence[torch.Tensor]) -> list[float]:
    """The L2 norm of each gradient; NaN or infinity where one of its elements is.

    Sums of squares are added up over blocks in float32 and over the blocks in float64, as
    ``capture/stats.py`` does: one float32 sum over millions of elements errs by up to 1e-3. Squares
    outside float32's range are taken in float64.
    """
    by_device: dict[torch.device, list[int]] = {}
    for number, gradient in enumerate(gradients):
        by_device.setdefault(gradient.device, []).append(number)
    norms = [0.0] * len(gradients)
    for numbers in by_device.values():
        found = torch.stack([_norm(gradients[n]) for n in numbers]).tolist()
        for number, norm in zip(numbers, found, strict=True):
            norms[number] = norm if 1e-15 < norm < 1e18 else _exact(gradients[number], norm)
    return norms


def _norm(gradient: torch.Tensor) -> torch.Tensor:
    """A norm without dimensions, in float64, on the gradient's device."""
    if gradient.layout == torch.sparse_coo:
        gradient = gradient.coalesce()._values()
    elif gradient.layout != torch.strided:
        gradient = gradient.to_dense()
    if gradient.is_complex():
        gradient = torch.view_as_real(gradient)
    if gradient.dtype in (torch.float16, torch.bfloat16):
        gradient = gradient.float()
    count = gradient.numel()
    if count <= BLOCK or not gradient.is_contiguous():
        double = torch.float64 if count > BLOCK else None
        norm: torch.Tensor = torch.linalg.vector_norm(gradient, dtype=double).double()
        return norm
    flat = gradient.view(-1)
    whole = count - count % BLOCK
    blocks = torch.linalg.vector_norm(flat[:whole].view(-1, BLOCK), dim=1)
    norm = torch.linalg.vector_norm(blocks, dtype=torch.float64)
    if whole == count:
        return norm
    return torch.hypot(norm, torch.linalg.vector_norm(flat[whole:]).double())


def _exact(gradient: torch.Tensor, norm: float) -> float:
    """The same where float32 may have lost it: its squares too large, or too small."""
    if math.isnan(norm) or gradient.is_sparse or gradient.is_complex():
        return norm
    return float(torch.linalg.vector_norm(gradient, dtype=torch.float64).item())
