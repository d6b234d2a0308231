"""Finds the picture that maximises a channel, by gradient ascent on the picture instead of the
weights.

Activation maximisation (Erhan et al. 2009, "Visualizing higher-layer features of a deep network")
with regularisation against noise, after Olah, Mordvintsev & Schubert 2017
(https://distill.pub/2017/feature-visualization): the frequencies of each step are weighted by 1/f,
all steps have equal length, and the picture is shifted at random before each step, so that the
result does not depend on its position. A sigmoid keeps every pixel between black and white.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gradscope import progress
from gradscope.errors import OptionError
from gradscope.features.channels import as_channels
from gradscope.features.streaming import Layer, hooked_layers, require_called
from gradscope.loading.vision_models import Viewer

#: The root mean square of a step, before the sigmoid, and of the noise at the start.
RATE, NOISE = 0.1, 0.1
#: The picture is shifted by up to this share of its sides.
SHIFT = 1 / 16


@dataclass(frozen=True, slots=True, eq=False)
class Range:
    """Holds the model's input values for black and for white, [C, H, W] each."""

    black: Tensor
    white: Tensor

    def input(self, picture: Tensor) -> Tensor:
        """Convert pictures [N, C, H, W] from 0 to 1 to model inputs."""
        return self.black + (self.white - self.black) * picture


@dataclass(frozen=True, slots=True, eq=False)
class Maximized:
    """Pictures [N, C, H, W] from 0 to 1, one for each channel, and the activation before and after.

    The activation is the mean over the places of the channel's map.
    """

    pictures: Tensor
    start: list[float]
    reached: list[float]


def input_range(viewer: Viewer, size: int | None) -> tuple[Range, str]:
    """Return black and white after the model's transform, and a remark if that does not work.

    ``size`` is the side of the picture if the transform does not change sizes; None: the size of
    the config's input, or 128.
    """
    from PIL import Image

    sides = [
        tuple(viewer.transform(Image.new("RGB", (side, side))).shape[1:]) for side in (96, 128)
    ]
    given = viewer.config.get("input")
    shape = given.get("shape") if isinstance(given, dict) else None
    height, width = (size or 128, size or 128) if shape is None or size else shape[-2:]
    remark = "" if sides[0] == sides[1] else f"size: {height} × {width}; `--size` changes it"
    black, white = (
        viewer.transform(Image.new("RGB", (width, height), color)).float()
        for color in ("black", "white")
    )
    if not bool((black != white).all()) or not bool((white - black).isfinite().all()):
        black, white = torch.zeros_like(black), torch.ones_like(black)
        remark = "the transform maps black and white to one value: the input goes from 0 to 1"
    return Range(black, white), remark


def channel_count(viewer: Viewer, layer: Layer, inputs: Tensor) -> int:
    """Return the number of channels of a layer for inputs [N, C, H, W].

    Raises:
        OptionError: the layer's output has no channels.
    """
    with torch.no_grad():
        return _means(viewer.model, layer, inputs).shape[1]


def maximized(
    viewer: Viewer, layer: Layer, channels: Sequence[int], within: Range, *, steps: int, seed: int
) -> Maximized:
    """Maximise each channel's mean activation by gradient ascent; equal seeds give equal pictures.

    Raises:
        OptionError: the channels do not depend on the input through differentiable operations.
    """
    generator = torch.Generator().manual_seed(seed)
    limits = Range(within.black.to(viewer.device), within.white.to(viewer.device))
    shape = tuple(within.black.shape)
    wanted = torch.tensor(list(channels), device=viewer.device)[:, None]

    def activation(pixels: Tensor) -> Tensor:
        inputs = limits.input(pixels.sigmoid()).to(viewer.dtype)
        return _means(viewer.model, layer, inputs).gather(1, wanted)[:, 0]

    # The same noise for all channels: none depends on which others are asked for.
    noise = NOISE * torch.randn(shape, generator=generator, device="cpu")
    pixels = noise.to(viewer.device).repeat(len(channels), 1, 1, 1).requires_grad_()
    with torch.no_grad():
        start = activation(pixels).tolist()
    reach = [max(1, round(SHIFT * side)) for side in shape[1:]]
    for step in range(1, steps + 1):
        shift = [
            int(torch.randint(-r, r + 1, (), generator=generator, device="cpu")) for r in reach
        ]
        with torch.enable_grad():
            climbed = activation(pixels.roll(shift, (2, 3))).sum()
        upwards = _smoothed(_gradient(climbed, pixels, layer))
        size = upwards.square().mean((1, 2, 3), keepdim=True).sqrt()
        with torch.no_grad():
            pixels += RATE * torch.where(size > 0, upwards / size, 0.0)
        progress.count(step, steps)
    with torch.no_grad():
        reached = activation(pixels).tolist()
    return Maximized(pixels.detach().sigmoid().cpu(), start, reached)


def _smoothed(values: Tensor) -> Tensor:
    """Return [N, C, H, W] with frequencies weighted by 1/f."""
    height, width = values.shape[2:]
    down, across = torch.fft.fftfreq(height)[:, None], torch.fft.rfftfreq(width)[None]
    weight = 1 / (down**2 + across**2).sqrt().clamp(min=1 / max(height, width))
    smooth: Tensor = torch.fft.irfft2(
        torch.fft.rfft2(values) * weight.to(values.device), s=(height, width)
    )
    return smooth


def _gradient(climbed: Tensor, pixels: Tensor, layer: Layer) -> Tensor:
    gradient = None
    if climbed.requires_grad:
        (gradient,) = torch.autograd.grad(climbed, pixels, allow_unused=True)
    if gradient is None:
        raise OptionError(
            f"no gradient of `{layer.title}` reaches the input: an operation cuts the graph",
            help="`gradscope why MODEL` finds the cut",
        )
    return gradient


def _means(model: nn.Module, layer: Layer, inputs: Tensor) -> Tensor:
    """Return [N, K]: each channel's mean over its places."""
    found: list[Tensor] = []

    def read(layer: Layer, values: Tensor) -> None:
        maps, _ = as_channels(values, layer, model, inputs)
        found[:] = [maps.float().mean((2, 3))]  # the last call counts

    with hooked_layers([layer], read):
        model(inputs.clone())
    require_called(bool(found), layer)
    return found[0]
