"""Rank correlation, by which two maps are compared."""

from __future__ import annotations

import torch
from torch import Tensor


def spearman(a: Tensor, b: Tensor) -> float | None:
    """Spearman's rank correlation of two maps' values; None where one of them is constant."""
    left, right = (_midranks(m.flatten().double().cpu()) for m in (a, b))
    left, right = left - left.mean(), right - right.mean()
    scale = float(left.norm() * right.norm())
    return float(left @ right) / scale if scale else None


def _midranks(values: Tensor) -> Tensor:
    """The rank of each value, equal values sharing the mean of theirs."""
    ordered = values.sort().values
    below, upto = (torch.searchsorted(ordered, values, right=right) for right in (False, True))
    return (below + upto + 1).double() / 2
