"""The lowest value that a loss function can have on given targets."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

_ZERO = ("nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "multi_margin_loss")
_BINARY = ("binary_cross_entropy", "binary_cross_entropy_with_logits")


def floor(name: str, target: torch.Tensor, options: dict[str, Any]) -> float | None:
    """Return the loss of a perfect output; None if unknown.

    Args:
        name: the function in ``torch.nn.functional``.
        target: its target.
        options: its keyword arguments.
    """
    if name in _ZERO:
        return 0.0
    plain = options.get("weight") is None and options.get("pos_weight") is None
    if name in _BINARY:
        hard = bool(((target == 0) | (target == 1)).all())
        if hard:
            return 0.0
        certain = target.double().clamp(0, 1)
        reduction = options.get("reduction", "mean")
        least = F.binary_cross_entropy(certain, certain, reduction=reduction)
        return float(least) if plain else None
    if name == "cross_entropy" and not target.is_floating_point():
        smoothing = float(options.get("label_smoothing") or 0.0)
        return 0.0 if not smoothing else None
    if name == "cross_entropy" and plain and options.get("reduction", "mean") == "mean":
        shares = target.double().flatten(2) if target.dim() > 2 else target.double()
        entropy = torch.special.entr(shares).sum(1 if target.dim() > 1 else 0)
        found = float(entropy.mean())
        return found if math.isfinite(found) else None
    return None
