"""Grad-CAM: the maps of a layer, each weighted by its average gradient."""

from __future__ import annotations

from torch import Tensor

from gradscope.saliency._subject import Subject

paper = "Selvaraju et al. 2017, arXiv 1610.02391"
signed = False
reads = ("layer",)


def attribute(subject: Subject) -> Tensor:
    """relu(Σ_k (1/Z Σ g^k) A^k), upsampled, [N, H, W]; g = ∂S/∂A.

    captum's ``LayerGradCam`` leaves out the ReLU and the upsampling; pytorch-grad-cam stretches the
    map to 0–1 before and after it upsamples.
    """
    return subject.upsample(weighted(subject.activation, subject.gradient).relu())


def weighted(activation: Tensor, gradient: Tensor) -> Tensor:
    """Σ_k (1/Z Σ g^k) A^k, [N, h, w]: Grad-CAM before its ReLU."""
    weights = gradient.float().mean(dim=(2, 3), keepdim=True)
    return (weights * activation.float()).sum(dim=1)
