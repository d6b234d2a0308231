"""Batches that configs name as ``_target_``: one, or an iterable of them, one for each step."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor


def noise(steps: int = 3, size: int = 8) -> Iterator[tuple[Tensor, Tensor]]:
    """``steps`` batches of images [size, 1, 28, 28] and class ids [size], each with its own
    seed."""
    for step in range(steps):
        generator = torch.Generator().manual_seed(step)
        images = torch.rand(size, 1, 28, 28, generator=generator)
        yield images, torch.randint(10, (size,), generator=generator)


def photograph(height: int = 96, width: int = 128) -> Tensor:
    """scikit-learn's photograph of a temple in China as [1, 3, height, width] in 0…1."""
    from sklearn.datasets import load_sample_image

    pixels = torch.from_numpy(load_sample_image("china.jpg").copy()).permute(2, 0, 1)[None] / 255
    return torch.nn.functional.interpolate(pixels, (height, width), mode="bilinear", antialias=True)
