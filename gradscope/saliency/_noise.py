"""The gradient's mean and variance under noise on the input: SmoothGrad and VarGrad share it."""

from __future__ import annotations

import torch
from torch import Tensor

from gradscope.errors import OptionError
from gradscope.saliency._gradients import gradients_at
from gradscope.saliency._subject import Subject


def moments(subject: Subject, n_samples: int, sigma: float) -> tuple[Tensor, Tensor]:
    """Mean and variance [N, C, H, W] of d score / d x at x + N(0, (σ · range of x)²).

    Each image gets the same noise, scaled by its own range, so that a batch equals its single
    images. The variance divides by the number of samples.

    Raises:
        OptionError: no sample, or a negative σ.
    """
    if n_samples < 1 or sigma < 0:
        raise OptionError(
            f"n_samples = {n_samples} and sigma = {sigma:g} make no average",
            help="at least one sample, and a sigma of zero or more",
        )
    key = ("noise", n_samples, sigma, subject.seed)
    if key not in subject.shared:
        subject.shared[key] = _moments(subject, n_samples, sigma)
    found: tuple[Tensor, Tensor] = subject.shared[key]
    return found


def _moments(subject: Subject, n_samples: int, sigma: float) -> tuple[Tensor, Tensor]:
    x, generator = subject.inputs, subject.generator()
    flat = x.flatten(1)
    spread = sigma * (flat.amax(dim=1) - flat.amin(dim=1)).view(-1, *[1] * (x.dim() - 1))

    def point(_: int) -> Tensor:
        noise = torch.randn(x.shape[1:], generator=generator)
        return x + spread * noise.to(x)

    # Welford's way: a variance far smaller than the squared mean keeps its digits.
    mean = torch.zeros_like(x, dtype=torch.float32)
    squares = torch.zeros_like(mean)
    for index, gradient in gradients_at(subject, point, n_samples):
        away = gradient.float() - mean
        mean += away / (index + 1)
        squares += away * (gradient.float() - mean)
    return mean, squares / n_samples
