"""The level of a tensor: finite, with Inf, with NaN; for any dtype, layout and class."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from gradscope.capture.shards import local

FINITE, INF, NAN = 0, 1, 2
KINDS = ("finite", "inf", "nan")


def level(tensor: torch.Tensor) -> int:
    """The worst that is among the elements that are here; what cannot be read counts as finite."""
    tensor = local(tensor)
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return FINITE
    try:
        if type(tensor) is torch.Tensor and tensor.layout == torch.strided and _plain(tensor):
            return _level(tensor)
        return max((_level(part) for part in _dense(tensor)), default=FINITE)
    except (RuntimeError, NotImplementedError, TypeError):
        return FINITE  # a wrapper, a kind of memory or a dtype without the reductions


def level_of_number(value: Any) -> int:
    """The same of a Python number; anything else is finite."""
    if isinstance(value, complex):
        return max(level_of_number(value.real), level_of_number(value.imag))
    if not isinstance(value, float) or math.isfinite(value):
        return FINITE
    return NAN if math.isnan(value) else INF


def broken(tensor: torch.Tensor, kind: int) -> torch.Tensor:
    """Which elements that are here are NaN, or are NaN or Inf where ``kind`` is INF."""
    tensor = local(tensor)
    return torch.isnan(tensor) if kind == NAN else ~torch.isfinite(tensor)


def only_negative(tensor: torch.Tensor) -> bool:
    """Whether all that is NaN or Inf is -inf, as in a mask."""
    return all(
        not part.is_complex() and not bool(((part == math.inf) | part.isnan()).any())
        for part in _dense(tensor)
    )


def _plain(tensor: torch.Tensor) -> bool:
    return not (tensor.is_nested or tensor.is_meta or tensor.is_quantized)


def _level(tensor: torch.Tensor) -> int:
    if tensor.numel() == 0:
        return FINITE
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    if tensor.dtype.itemsize == 1:
        tensor = tensor.half()
    # One fast reduction: a finite sum has finite terms. Float16 is added up in float32.
    wide = torch.float32 if tensor.dtype.itemsize < 4 else None
    if math.isfinite(tensor.sum(dtype=wide).item()):
        return FINITE
    if bool(torch.isnan(tensor).any()):
        return NAN
    return INF if bool(torch.isinf(tensor).any()) else FINITE


def _dense(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The values that are there, as strided tensors; nothing where there are none to read."""
    tensor = local(tensor)
    if tensor.is_meta or tensor.is_quantized or isinstance(tensor, FakeTensor):
        return []
    if tensor.is_nested:
        return list(tensor.detach().unbind())
    if tensor.layout == torch.sparse_coo:
        return [tensor.detach()._values()]
    if tensor.layout == torch._mkldnn:  # type: ignore[attr-defined]
        return [tensor.detach().to_dense()]
    if tensor.layout != torch.strided:
        return [tensor.detach().values()]
    return [tensor.detach()]
