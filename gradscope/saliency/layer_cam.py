"""Layer-CAM: the maps where their own gradient is positive, which suits early layers too."""

from __future__ import annotations

from torch import Tensor

from gradscope.saliency._subject import Subject

paper = "Jiang et al. 2021, IEEE TIP, doi 10.1109/TIP.2021.3089943"
signed = False
reads = ("layer",)


def attribute(subject: Subject) -> Tensor:
    """relu(Σ_k relu(g^k) ⊙ A^k), upsampled, [N, H, W]."""
    products = subject.gradient.float().relu() * subject.activation.float()
    return subject.upsample(products.sum(dim=1).relu())
