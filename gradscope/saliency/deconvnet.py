"""Deconvnet: the gradient with only its positive part sent back through each ReLU."""

from __future__ import annotations

from torch import Tensor

from gradscope.saliency._gradients import strongest
from gradscope.saliency._subject import Subject
from gradscope.saliency.guided_backprop import deconvnet_rule, ruled_gradient

paper = "Zeiler & Fergus 2014, arXiv 1311.2901"
signed = False
reads = ("input",)


def attribute(subject: Subject) -> Tensor:
    """max over channels of |R₀|, [N, H, W], where R passes each ReLU as relu(R).

    captum's ``Deconvolution`` changes ``nn.ReLU`` modules only, and leaves the channels separate;
    here the operations change, so ``F.relu``, reused and in-place ReLUs and ReLU6 follow the rule.
    """
    relevance, coverage = ruled_gradient(subject, deconvnet_rule)
    subject.notes.append(str(coverage))
    return strongest(relevance)
