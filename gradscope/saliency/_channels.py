"""From one value per channel to one per pixel."""

from __future__ import annotations

from torch import Tensor


def strongest(attribution: Tensor) -> Tensor:
    """[N, C, H, W] → [N, H, W]: the largest absolute value over the channels."""
    return attribution.abs().amax(dim=1).float()


def summed(attribution: Tensor) -> Tensor:
    """[N, C, H, W] → [N, H, W]: the sum over the channels, with its sign."""
    return attribution.sum(dim=1).float()
