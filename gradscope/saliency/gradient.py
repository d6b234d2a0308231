"""Gradient: how strongly each pixel's change would change the score, by first order."""

from __future__ import annotations

from torch import Tensor

from gradscope.saliency._gradients import strongest
from gradscope.saliency._subject import Subject

paper = "Simonyan et al. 2014, arXiv 1312.6034"
signed = False
reads = ("input",)


def attribute(subject: Subject) -> Tensor:
    """max over channels of |∂S/∂x|, [N, H, W].

    captum's ``Saliency`` takes the absolute value and leaves the channels separate.
    """
    return strongest(subject.input_gradient)
