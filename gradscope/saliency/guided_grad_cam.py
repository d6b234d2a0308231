"""Guided Grad-CAM: the detail of guided backpropagation where Grad-CAM finds the class."""

from __future__ import annotations

from torch import Tensor

from gradscope.saliency import grad_cam, guided_backprop
from gradscope.saliency._subject import Subject

paper = "Selvaraju et al. 2017, arXiv 1610.02391"
signed = False
reads = ("input", "layer")


def attribute(subject: Subject) -> Tensor:
    """Grad-CAM at the input's resolution ⊙ guided backpropagation, [N, H, W].

    captum's ``GuidedGradCam`` upsamples by nearest neighbours and leaves the channels separate;
    this upsamples bilinearly and takes the largest absolute value over the channels.
    """
    return grad_cam.attribute(subject) * guided_backprop.attribute(subject)
