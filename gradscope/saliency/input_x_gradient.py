"""Input × gradient: each pixel's share of the score, by first order from an input of zeros."""

from __future__ import annotations

from torch import Tensor

from gradscope.saliency._gradients import summed
from gradscope.saliency._subject import Subject

paper = "Shrikumar et al. 2016, arXiv 1605.01713"
signed = True
reads = ("input",)


def attribute(subject: Subject) -> Tensor:
    """Σ over channels of x ⊙ ∂S/∂x, [N, H, W], signed.

    A pixel whose normalised value is zero gets nothing, whatever it does. In a network of ReLUs
    without biases the map sums to the score. captum's ``InputXGradient`` leaves the channels
    separate.
    """
    return summed(subject.inputs * subject.input_gradient)
