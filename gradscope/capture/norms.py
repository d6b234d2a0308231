"""Norms of many gradients at once, in one read of each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

from gradscope.capture import one_pass
from gradscope.capture.reductions import BLOCK, in_memory_order
from gradscope.capture.shards import local
from gradscope.records.tensors import TensorStats


def gradient_norms(
    gradients: Sequence[torch.Tensor], measured: Mapping[int, TensorStats] | None = None
) -> list[float]:
    """Return the L2 norm of each gradient, or of its shard; NaN or Inf if an element is.

    Without the compiled library, sums of squares are added up over blocks in float32 and over the
    blocks in float64, as ``capture/reductions.py`` does: one float32 sum over millions of elements
    errs by up to 1e-3. Squares outside float32's range are taken in float64.

    Args:
        gradients: the gradients.
        measured: by ``id``, statistics of their present values. Where they have the norm that this
            function would compute, it is taken from them.
    """
    known = measured if measured and one_pass.is_compiled() else {}
    statistics = [known.get(id(gradient)) for gradient in gradients]
    # Backward may have built a graph. `no_grad` would take longer than a norm.
    gradients = [g.detach() if g.requires_grad else g for g in map(local, gradients)]
    norms = [0.0] * len(gradients)
    small, others, exact = [], [], set()
    for number, gradient in enumerate(gradients):
        plain = _is_plain(gradient)
        if plain and gradient.numel() <= BLOCK:
            small.append(number)
        elif plain and type(gradient) is torch.Tensor and (stats := statistics[number]) is not None:
            own = math.inf if stats.inf else stats.norm
            norms[number] = math.nan if stats.nan or own is None else own
            exact.add(number)
        elif (numbers := one_pass.numbers(gradient)) is not None:
            *_, nan, inf = numbers
            norms[number] = math.nan if nan else math.inf if inf else numbers[0]
            exact.add(number)
        elif not plain:
            others.append(number)
        else:
            # On the CPU numbers can be read at once, so Python adds up the blocks.
            norms[number] = math.hypot(*_block_norms(gradient.view(-1)).tolist())
    if small:
        # One call for all, because a call takes longer than computing the norm of such a gradient.
        found = torch._foreach_norm([gradients[n] for n in small])
        for number, norm in zip(small, found, strict=True):
            norms[number] = norm.item()
    for device in {gradients[n].device for n in others}:
        there = [n for n in others if gradients[n].device == device]
        read = torch.stack([_norm(gradients[n]) for n in there]).tolist()
        for number, norm in zip(there, read, strict=True):
            norms[number] = norm
    return [
        norm if 1e-15 < norm < 1e18 or number in exact else _exact(gradients[number], norm)
        for number, norm in enumerate(norms)
    ]


def _is_plain(gradient: torch.Tensor) -> bool:
    """Return True for a common CPU gradient: float32, strided, contiguous."""
    return (
        gradient.dtype == torch.float32
        and gradient.layout == torch.strided
        and gradient.is_cpu
        and gradient.is_contiguous()
    )


def _block_norms(flat: torch.Tensor) -> torch.Tensor:
    """Return the norm of each block.

    As rows of a matrix this takes half the time of a dot product per block, or of one call over all
    blocks.
    """
    count = flat.numel()
    rest = count % BLOCK
    full = flat if not rest else flat[: count - rest]
    rows: torch.Tensor = torch.linalg.vector_norm(full.view(-1, BLOCK), dim=1)
    if not rest:
        return rows
    return torch.cat([rows, torch.linalg.vector_norm(flat[count - rest :]).view(1)])


def _norm(gradient: torch.Tensor) -> torch.Tensor:
    """Return the norm as a 0-dim float64 tensor on the gradient's device."""
    if gradient.layout == torch.sparse_coo:
        gradient = gradient.coalesce()._values()
    elif gradient.layout != torch.strided:
        gradient = gradient.to_dense()
    if gradient.is_complex():
        gradient = torch.view_as_real(gradient)
    if gradient.dtype in (torch.float16, torch.bfloat16):
        gradient = gradient.float()
    # In memory order: of a convolution's weights the channels may come last.
    ordered, copies = in_memory_order(gradient)
    flat = ordered.reshape(-1)
    blocks = flat if flat.numel() <= BLOCK else _block_norms(flat)
    double = torch.float64 if blocks is not flat else None
    norm: torch.Tensor = torch.linalg.vector_norm(blocks, dtype=double).double()
    return norm if copies == 1 else norm * math.sqrt(copies)


def _exact(gradient: torch.Tensor, norm: float) -> float:
    """Recompute the norm if squares overflow or underflow in float32."""
    if math.isnan(norm) or gradient.is_sparse or gradient.is_complex():
        return norm
    return float(torch.linalg.vector_norm(gradient, dtype=torch.float64).item())
