"""Measures many small tensors together, such as the biases and norm weights of all layers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch.nn.parameter import is_lazy

from gradscope.capture import one_pass
from gradscope.capture.reductions import BLOCK
from gradscope.capture.shards import local
from gradscope.capture.stats import SMALL, Measured, finish, measure, on_host
from gradscope.records.tensors import TensorStats

_ROWS = 1 << 19  # elements that are held in float64 at a time
#: Dtypes whose squares always fit float64.
_NARROW = {torch.float32, torch.bfloat16, torch.float16}


def measure_all(tensors: Iterable[torch.Tensor]) -> list[Measured]:
    """Measure each tensor. Without the compiled library, tensors of one size become rows of one
    matrix."""
    tensors = list(map(local, tensors))
    if one_pass.is_compiled():
        return [measure(tensor) for tensor in tensors]
    done: list[Measured | None] = [None] * len(tensors)
    alike: dict[tuple[int, torch.dtype], list[int]] = {}
    for i, tensor in enumerate(tensors):
        if _is_here(tensor) and SMALL < tensor.numel() <= BLOCK:
            alike.setdefault((tensor.numel(), tensor.dtype), []).append(i)
    for (numel, _), places in alike.items():
        at_once = max(1, _ROWS // numel)
        for first in range(0, len(places), at_once):
            some = places[first : first + at_once]
            if len(some) > 1:
                found = _rows([tensors[i] for i in some])
                for i, stats in zip(some, found, strict=True):
                    done[i] = stats
    return [measure(t) if d is None else d for t, d in zip(tensors, done, strict=True)]


@torch.no_grad()
def surely_finite(tensor: torch.Tensor) -> bool:
    """Return True if the sum proves that no element is NaN or Inf.

    False also if the sum leaves the dtype's range, and for a tensor that is not plain.
    """
    tensor = local(tensor)
    return _is_here(tensor) and math.isfinite(tensor.sum().item())


def _is_here(tensor: torch.Tensor) -> bool:
    """Return True for a plain tensor in CPU memory with a common floating dtype."""
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and not is_lazy(tensor)
        and on_host(tensor)
        and tensor.layout == torch.strided
        and tensor.dtype in _NARROW
    )


@torch.no_grad()
def _rows(tensors: Sequence[torch.Tensor]) -> list[TensorStats | None]:
    """Return the statistics of each; None if an element is NaN or Inf."""
    dtype = str(tensors[0].dtype).removeprefix("torch.")
    rows = torch.stack([tensor.detach().reshape(-1) for tensor in tensors]).double()
    n = rows.shape[1]
    low, high = rows.amin(1), rows.amax(1)
    mean = torch.minimum(torch.maximum(rows.mean(1), low), high)
    zeros = n - rows.bool().sum(1)
    norm = torch.linalg.vector_norm(rows, dim=1)
    std = torch.linalg.vector_norm(rows.sub_(mean[:, None]), dim=1) / n**0.5
    figures = torch.stack([norm, mean, std, low, high, zeros]).T
    finite = torch.isfinite(figures).all(1).tolist()
    return [
        finish(tuple(tensor.shape), dtype, n, [*numbers, 0.0, 0.0]) if full else None
        for tensor, numbers, full in zip(tensors, figures.tolist(), finite, strict=True)
    ]
