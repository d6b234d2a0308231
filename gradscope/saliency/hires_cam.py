"""HiResCAM: each position's own share of the score, without averaging over positions."""

from __future__ import annotations

from torch import Tensor

from gradscope.saliency._subject import Subject

paper = "Draelos & Carin 2020, arXiv 2011.08891"
signed = False
reads = ("layer",)


def attribute(subject: Subject) -> Tensor:
    """relu(Σ_k g^k ⊙ A^k), upsampled, [N, H, W]."""
    products = subject.gradient.float() * subject.activation.float()
    return subject.upsample(products.sum(dim=1).relu())
