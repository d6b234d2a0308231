"""Guided backpropagation: the gradient along paths that are positive at every ReLU."""

from __future__ import annotations

from torch import Tensor

from gradscope.saliency._channels import strongest
from gradscope.saliency._relu import guided_rule, ruled_gradient
from gradscope.saliency._subject import Subject

paper = "Springenberg et al. 2015, arXiv 1412.6806"
signed = False
reads = ("input",)


def attribute(subject: Subject) -> Tensor:
    """max over channels of |R₀|, [N, H, W], where R passes a ReLU of input A as 1[A>0]·relu(R).

    The maps hardly depend on the weights of the upper layers (Adebayo et al., arXiv 1810.03292).
    captum and pytorch-grad-cam change ``nn.ReLU`` modules alone and leave the channels separate;
    here the operations change, so ``F.relu``, reused and in-place ReLUs and ReLU6 follow the rule.
    """
    relevance, coverage = ruled_gradient(subject, guided_rule)
    subject.notes.append(str(coverage))
    return strongest(relevance)
