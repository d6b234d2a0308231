"""A tensor to counts by sign and power of two: exact, and the same bins for every tensor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

_CHUNK = 1 << 20  # elements that are held in float64 at a time
#: The lowest and highest exponents of float64, subnormals included.
_LOWEST, _HIGHEST = -1074, 1023


def counted(tensor: torch.Tensor) -> dict[str, Any]:
    """The fields of a ``Histogram`` that say what is in a tensor; complex numbers by modulus."""
    bins = torch.zeros(2, _HIGHEST - _LOWEST + 1, dtype=torch.int64)
    zeros = nan = inf = numel = 0
    for chunk in _chunks(tensor.detach()):
        numel += chunk.numel()
        zeros += int((chunk == 0).sum())
        nan += int(chunk.isnan().sum())
        inf += int(chunk.isinf().sum())
        chunk = chunk[chunk.isfinite() & (chunk != 0)]
        # frexp's mantissa lies in [0.5, 1): the power of two below |x| is one less.
        exponents = (torch.frexp(chunk).exponent.long() - 1).clamp(_LOWEST, _HIGHEST) - _LOWEST
        for row, sign in enumerate((chunk < 0, chunk > 0)):
            bins[row] += torch.bincount(exponents[sign], minlength=bins.shape[1])
    there = bins.sum(0).nonzero().flatten().tolist()
    first, end = (there[0], there[-1] + 1) if there else (-_LOWEST, -_LOWEST)
    return {
        "numel": numel,
        "first": first + _LOWEST,
        "negative": tuple(bins[0, first:end].tolist()),
        "positive": tuple(bins[1, first:end].tolist()),
        "zeros": zeros,
        "nan": nan,
        "inf": inf,
    }


def _chunks(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Some elements after the other in float64 on the CPU."""
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if tensor.is_nested:
        parts = list(tensor.unbind())
    else:
        parts = [tensor if tensor.layout == torch.strided else tensor.to_dense()]
    for part in parts:
        for chunk in torch.split(part.reshape(-1), _CHUNK):
            chunk = chunk.cpu()
            yield chunk.abs().double() if chunk.is_complex() else chunk.double()
