"""SCOUTER: the attention of the target's own slot, in a model that scores by slot attention."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from gradscope.capture.hooks import hookable_modules, hooked
from gradscope.errors import OptionError
from gradscope.saliency._subject import Subject

paper = "Li et al. 2021, arXiv 2009.06138"
signed = False
reads = ("scores",)

WITHOUT_HEAD = (
    "try it on `demo:scouter`, or take grad-cam, which works on any model with spatial maps; "
    "slot attention has to be trained into a model"
)


def attribute(subject: Subject) -> Tensor:
    """A_c = sigmoid(Q(S_c) · K(F + P)ᵀ / √d) of the target c, upsampled, [N, H, W] in 0…1.

    S_c is the class's slot in the last iteration, F [N, d, h, w] the features, P their position
    (``gradscope.demo.scouter`` has all of it). The score of the class is slot_sign · Σ A_c F / d
    and nothing else. So the map is no estimate: it is the weight of each position in the score.
    With a positive sign it shows why the image is of class c. With a negative sign it shows why the
    image is not of class c; then the map of the predicted class is usually the emptiest, and
    ``--target`` selects another.

    It works on a model with a slot-attention head: a module whose ``slot_sign`` is +1 or −1 and
    whose forward returns (scores [N, classes], attention [N, classes, h, w] in 0…1). The last such
    call counts. Neither captum nor pytorch-grad-cam has this method; the authors' code stretches
    each map to 0–255.

    Raises:
        OptionError: the model has no such head, or the question is why one class and not another.
    """
    objective = subject.objective
    if objective.versus is not None:
        raise OptionError(
            "a slot explains its own class, and not why it rather than another",
            help="grad-cam takes --versus",
        )
    attention = _attention(subject)
    rows = torch.arange(len(attention), device=attention.device)
    return subject.upsample(attention[rows, subject.target])


def heads(model: nn.Module) -> list[nn.Module]:
    """Return the slot-attention heads: modules with ``slot_sign``."""
    signs = ((m, getattr(m, "slot_sign", None)) for m in hookable_modules(model) if m is not model)
    return [module for module, sign in signs if isinstance(sign, int) and sign in (1, -1)]


def _attention(subject: Subject) -> Tensor:
    """Return each class's attention [N, classes, h, w], as the head's last call gave it."""
    found: list[Tensor] = []
    images, classes = subject.logits.shape

    def after(
        module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        if isinstance(output, tuple) and len(output) == 2 and isinstance(output[1], Tensor):
            attention = output[1]
            if attention.dim() == 4 and attention.shape[:2] == (images, classes):
                found.append(attention.clone())

    modules = heads(subject.model)
    if not modules:
        raise OptionError("this model has no slot-attention head to read", help=WITHOUT_HEAD)
    with torch.no_grad(), hooked(modules, None, after):
        subject.output()
    if not found:
        name = type(modules[-1]).__name__
        raise OptionError(
            f"the slot-attention head `{name}` gave no attention [{images}, {classes}, h, w]",
            help="its forward returns (scores [N, classes], attention [N, classes, h, w])",
        )
    return found[-1]
