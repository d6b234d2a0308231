"""Grad-CAM++: Grad-CAM whose positions count by how much each alone would raise the score."""

from __future__ import annotations

from torch import Tensor

from gradscope.saliency._subject import Subject

paper = "Chattopadhyay et al. 2018, arXiv 1710.11063"
signed = False
reads = ("layer",)

EPS = 1e-6


def attribute(subject: Subject) -> Tensor:
    """relu(Σ_k w_k A^k), upsampled, [N, H, W].

    w_k = Σ α · relu(g), α = g² / (2g² + ΣA · g³ + 1e-6), which assumes second and third
    derivatives of exp(S), not of S. The small number in α is absolute, as in pytorch-grad-cam:
    where gradients are below a thousandth it damps the weights.
    """
    activation, g = subject.activation.float(), subject.gradient.float()
    square = g * g
    alpha = square / (2 * square + activation.sum(dim=(2, 3), keepdim=True) * square * g + EPS)
    weights = (g.relu() * alpha).sum(dim=(2, 3), keepdim=True)
    return subject.upsample((weights * activation).sum(dim=1).relu())
