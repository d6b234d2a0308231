"""XGrad-CAM: Grad-CAM whose gradients are averaged where the map is active."""

from __future__ import annotations

from torch import Tensor

from gradscope.saliency._subject import Subject

paper = "Fu et al. 2020, arXiv 2008.02312"
signed = False
reads = ("layer",)

EPS = 1e-7


def attribute(subject: Subject) -> Tensor:
    """relu(Σ_k w_k A^k), upsampled, [N, H, W]; w_k = Σ g^k ⊙ A^k / (ΣA^k + 1e-7).

    The paper and pytorch-grad-cam divide in the same way. If a map's values cancel (in a layer
    without a ReLU), its weight is large by chance.
    """
    activation, gradient = subject.activation.float(), subject.gradient.float()
    total = activation.sum(dim=(2, 3), keepdim=True) + EPS
    weights = (gradient * activation / total).sum(dim=(2, 3), keepdim=True)
    return subject.upsample((weights * activation).sum(dim=1).relu())
