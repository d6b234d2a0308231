"""SmoothGrad: the gradient averaged over noisy copies of the input."""

from __future__ import annotations

import torch
from torch import Tensor

from gradscope.errors import OptionError
from gradscope.saliency._gradients import gradients_at, strongest
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
    return subject.once(key, lambda: _moments(subject, n_samples, sigma))


def _moments(subject: Subject, n_samples: int, sigma: float) -> tuple[Tensor, Tensor]:
    x, generator = subject.inputs, subject.generator()
    flat = x.flatten(1)
    spread = sigma * (flat.amax(dim=1) - flat.amin(dim=1)).view(-1, *[1] * (x.dim() - 1))

    def point(_: int) -> Tensor:
        noise = torch.randn(x.shape[1:], generator=generator, device="cpu")
        return x + spread * noise.to(x)

    # Welford's way: a variance far smaller than the squared mean keeps its digits.
    mean = torch.zeros_like(x, dtype=torch.float32)
    squares = torch.zeros_like(mean)
    for index, gradient in gradients_at(subject, point, n_samples):
        away = gradient.float() - mean
        mean += away / (index + 1)
        squares += away * (gradient.float() - mean)
    return mean, squares / n_samples


paper = "Smilkov et al. 2017, arXiv 1706.03825"
signed = False
random = True
reads = ("scores",)


def attribute(subject: Subject, *, n_samples: int = 25, sigma: float = 0.15) -> Tensor:
    """max over channels of |mean of ∂S/∂x at x + N(0, σ²)|, [N, H, W].

    ``sigma`` is a share of the input's range (the paper's 10–20 %); captum's ``NoiseTunnel`` takes
    an absolute one, and by default averages absolute gradients where this averages signed ones.
    Every image gets the same seeded noise.
    """
    return strongest(moments(subject, n_samples, sigma)[0])
