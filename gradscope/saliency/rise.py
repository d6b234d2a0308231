"""RISE: how well the class scores, on average, when a pixel stays visible under random masks."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from gradscope.errors import OptionError
from gradscope.saliency._subject import Subject

paper = "Petsiuk et al. 2018, arXiv 1806.07421"
signed = True
reads = ("scores",)
random = True

#: Masks that are held at once while they are summed up.
CHUNK = 64


def attribute(subject: Subject, *, n_samples: int = 4000, grid: int = 7, p: float = 0.5) -> Tensor:
    """Σ S(x ⊙ M)·M / (N·p) over N random masks, [N, H, W].

    A mask is a grid of zeros and ones, enlarged to (grid + 1) cells a side bilinearly and cut to
    the picture's size at a random offset of up to one cell. All images see the same masks, which
    depend on the seed alone. Neither captum nor pytorch-grad-cam has this method. Two things differ
    from the authors' code: scikit-image, which it uses, continues the grid beyond its edge, while
    this repeats the last cell; and it weights by the class's probability, while this weights by the
    logit. The noise falls with 1/√N.

    Args:
        n_samples: N, the number of masks.
        grid: cells a side.
        p: the probability that a cell is visible.

    Raises:
        OptionError: no masks, a grid finer than the picture, or a p outside (0, 1].
    """
    height, width = subject.inputs.shape[-2:]
    if n_samples < 1 or not 0 < p <= 1:
        raise OptionError("rise needs n_samples ≥ 1 and 0 < p ≤ 1", help="--option p=0.5")
    if not 1 <= grid <= min(height, width):
        raise OptionError(
            f"a grid of {grid} does not fit a picture of {height} × {width}", help="--option grid=7"
        )
    masks = _Masks(subject, n_samples, grid, p)
    images = len(subject.inputs)

    def make(items: slice) -> Tensor:
        first, last = items.start // images, (items.stop - 1) // images
        drawn = masks.of(slice(first, last + 1))
        item = torch.arange(items.start, items.stop, device=drawn.device)
        return subject.inputs[item % images] * drawn[item // images - first][:, None]

    scores = subject.scores_of(make, n_samples * images).view(n_samples, images)
    total = torch.zeros(images, height * width, dtype=torch.float64, device="cpu")
    for start in range(0, n_samples, CHUNK):
        some = slice(start, min(start + CHUNK, n_samples))
        weighted = scores[some].T.to(masks.dtype) @ masks.of(some).flatten(1)
        total += weighted.cpu().double()
    mean = total / (n_samples * p)
    return mean.view(images, height, width).float().to(subject.inputs.device)


class _Masks:
    """N masks, drawn as small grids and enlarged when they are used."""

    def __init__(self, subject: Subject, count: int, grid: int, p: float) -> None:
        self.size = subject.inputs.shape[-2:]
        device, self.dtype = subject.inputs.device, subject.inputs.dtype
        generator = subject.generator()
        self.cells = (torch.rand(count, grid, grid, generator=generator, device="cpu") < p).to(
            device, self.dtype
        )
        sides = [-(-side // grid) for side in self.size]
        self.offsets = [
            torch.randint(side, (count,), generator=generator, device="cpu").to(device)
            for side in sides
        ]
        self.enlarge = [_enlarging(grid, side).to(device, self.dtype) for side in sides]

    def of(self, some: slice) -> Tensor:
        """Return these masks, [M, H, W]: along each side its own matrix, cut at the mask's
        offset.
        """
        down, across = (
            matrix[offset[some, None] + torch.arange(length, device=offset.device)]
            for matrix, offset, length in zip(self.enlarge, self.offsets, self.size, strict=True)
        )
        return down @ self.cells[some] @ across.transpose(1, 2)


def _enlarging(grid: int, cell: int) -> Tensor:
    """Return the matrix [(grid + 1)·cell, grid] of bilinear interpolation along one side."""
    return interpolate(torch.eye(grid, device="cpu")[None], size=(grid + 1) * cell, mode="linear")[
        0
    ].T
