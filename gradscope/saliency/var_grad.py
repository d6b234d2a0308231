"""VarGrad: where the gradient varies most over noisy copies of the input."""

from __future__ import annotations

from torch import Tensor

from gradscope.saliency._gradients import strongest
from gradscope.saliency._subject import Subject
from gradscope.saliency.smooth_grad import moments

paper = "Adebayo et al. 2018, arXiv 1810.03307"
signed = False
random = True
reads = ("scores",)


def attribute(subject: Subject, *, n_samples: int = 25, sigma: float = 0.15) -> Tensor:
    """max over channels of the variance of ∂S/∂x at x + N(0, σ²), [N, H, W].

    The noise is SmoothGrad's, and a run of both draws it once. The variance divides by the number
    of samples, as captum's ``NoiseTunnel`` with ``nt_type="vargrad"`` does.
    """
    return strongest(moments(subject, n_samples, sigma)[1])
