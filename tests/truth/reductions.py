"""A report's STATS of a tensor, reduced in float64 over the whole of it; needs torch alone."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor


def statistics(tensor: Tensor) -> dict[str, Any]:
    """The numbers of a report's STATS, from float64 over the full tensor in two passes."""
    tensor = tensor.detach()
    if tensor.is_sparse:
        tensor = tensor.coalesce().to_dense()
    stats: dict[str, Any] = {
        "shape": list(tensor.shape),
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "numel": tensor.numel(),
    }
    wide = tensor.to(torch.complex128).abs() if tensor.is_complex() else tensor.double()
    whole = tensor if tensor.is_complex() else wide
    good = torch.isfinite(whole)
    finite = wide if bool(good.all()) else wide[good]
    stats |= {
        "zeros": int((wide == 0).sum()),
        "nan": int(torch.isnan(whole).sum()),
        "inf": int(torch.isinf(whole).sum()),
    }
    stats |= dict.fromkeys(("norm", "mean", "std", "min", "max"))
    if finite.numel():
        # Scaled by the largest, so that squares neither overflow nor vanish.
        scale = float(finite.abs().max()) or 1.0
        small = finite / scale
        mean = float(small.mean())
        stats["norm"] = scale * math.sqrt(float((small * small).sum()))
        stats["mean"] = scale * mean
        stats["std"] = scale * math.sqrt(float(((small - mean) ** 2).mean()))
        stats["min"], stats["max"] = float(finite.min()), float(finite.max())
    if tensor.numel() <= 16:
        stats["values"] = [_value(item) for item in tensor.flatten().tolist()]
    return stats


def _value(item: Any) -> Any:
    if isinstance(item, complex):
        return [_value(item.real), _value(item.imag)]
    item = float(item)
    return item if math.isfinite(item) else str(item)
