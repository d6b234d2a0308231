"""Which part of a picture a channel's value depends on: its effective receptive field."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from gradscope.features.channels import as_channels
from gradscope.features.outputs import Layer, hooked_layers

#: The share of the gradient that the box holds, along each side.
SHARE = 0.9

Box = tuple[float, float, float, float]


def receptive_boxes(
    model: nn.Module, inputs: Tensor, layer: Layer, channel: int, places: Sequence[int]
) -> list[Box | None]:
    """Left, top, right and bottom, as shares of the input, of what moves each picture's value.

    The value is that of the channel at the picture's place (row · width + column) in the map. The
    box holds nine tenths of the absolute gradient with respect to the input along each side; None
    where there is no gradient. Effective receptive field: Luo et al. 2016, arXiv 1701.04128.
    """
    found: list[Tensor] = []

    def read(layer: Layer, values: Tensor) -> None:
        maps, _ = as_channels(values, layer, model, inputs)
        at = torch.tensor(places, device=maps.device)[:, None]
        found[:] = [maps[:, channel].flatten(1).gather(1, at).sum()]

    leaf = inputs.detach().clone().requires_grad_()
    with torch.enable_grad(), hooked_layers([layer], read):
        model(leaf.clone())
    if not found or not found[0].requires_grad:
        return [None] * len(inputs)
    (gradient,) = torch.autograd.grad(found[0], leaf, allow_unused=True)
    if gradient is None:
        return [None] * len(inputs)
    return [_box(one) for one in gradient.abs().sum(1).double().cpu()]


def _box(weight: Tensor) -> Box | None:
    """The middle of a weight [H, W]."""
    if not bool(weight.isfinite().all()) or not bool(weight.any()):
        return None
    top, bottom = _middle(weight.sum(1))
    left, right = _middle(weight.sum(0))
    return left, top, right, bottom


def _middle(weight: Tensor) -> tuple[float, float]:
    """The first and the last pixel's edges between which the share lies, of the full side."""
    below = weight.cumsum(0) / weight.sum()
    rest = (1 - SHARE) / 2
    first = int((below < rest).sum())
    last = min(int((below < 1 - rest).sum()), len(weight) - 1)
    return first / len(weight), (last + 1) / len(weight)
