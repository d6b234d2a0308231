"""SmoothGrad: the gradient averaged over noisy copies of the input."""

from __future__ import annotations

from torch import Tensor

from gradscope.saliency._channels import strongest
from gradscope.saliency._noise import moments
from gradscope.saliency._subject import Subject

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
