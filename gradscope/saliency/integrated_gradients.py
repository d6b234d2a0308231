"""Integrated gradients: each pixel's share of the score's rise from a baseline to the image."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from gradscope.errors import OptionError
from gradscope.saliency._gradients import gradients_at, summed
from gradscope.saliency._subject import Subject

paper = "Sundararajan et al. 2017, arXiv 1703.01365"
signed = True
reads = ("scores",)


def attribute(subject: Subject, *, n_steps: int = 50, baseline: float = 0.0) -> Tensor:
    """Σ over channels of (x − x′) ⊙ ∫₀¹ ∂S/∂x (x′ + α(x − x′)) dα, [N, H, W], signed.

    The integral is taken by Gauss–Legendre quadrature, as captum's ``IntegratedGradients`` takes
    it; captum leaves the channels separate. ``baseline`` is one value in the model's input space,
    where zero is not black once pictures are normalised. The map sums to S(x) − S(x′).
    """
    if n_steps < 1:
        raise OptionError(f"n_steps = {n_steps} takes no step", help="at least 1; 50 is usual")
    nodes, weights = np.polynomial.legendre.leggauss(n_steps)
    x = subject.inputs
    start = torch.full_like(x, baseline)

    def point(step: int) -> Tensor:
        return start + float((1 + nodes[step]) / 2) * (x - start)

    total = torch.zeros_like(x, dtype=torch.float32)
    for step, gradient in gradients_at(subject, point, n_steps):
        total += float(weights[step] / 2) * gradient.float()
    return summed((x - start) * total)
