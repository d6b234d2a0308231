"""Checks the arguments of ``kl_div``: the first must be log-probabilities, the second
probabilities."""

from __future__ import annotations

import torch

#: How far a sum of probabilities may be from 1.
_NEAR = 1e-2


def divergence_fault(
    given: torch.Tensor, target: torch.Tensor, *, log_target: bool
) -> tuple[str, tuple[float, ...]] | None:
    """Return the wrong argument, with its smallest and largest value; None without one."""
    if given.shape != target.shape or not given.dim() or given.numel() < 2:
        return None
    given, target = given.detach(), target.detach()
    if _are_probabilities(given):
        return "kl-input", _range(given)
    if log_target and _are_probabilities(target):
        return "kl-log-target", _range(target)
    if not log_target and bool((target <= 0).all()) and _are_probabilities(target.exp()):
        return "kl-target", _range(target)
    return None


def _are_probabilities(values: torch.Tensor) -> bool:
    """Return True if the values are at least 0, differ, and add up to 1 over an axis."""
    if not bool((values >= 0).all()) or not bool((values != values.flatten()[0]).any()):
        return False
    axes = (-1, 1) if values.dim() > 1 else (-1,)
    return any(
        values.shape[axis] > 1 and bool(((values.double().sum(axis) - 1).abs() < _NEAR).all())
        for axis in axes
    )


def _range(values: torch.Tensor) -> tuple[float, ...]:
    return float(values.min()), float(values.max())
