"""CAM: the last maps weighted by the linear layer that reads their averages."""

from __future__ import annotations

from torch import Tensor, nn

from gradscope.errors import OptionError
from gradscope.saliency._subject import Subject

paper = "Zhou et al. 2016, arXiv 1512.04150"
signed = False
reads = ("layer",)


def attribute(subject: Subject) -> Tensor:
    """relu(Σ_k w_k A^k), upsampled, [N, H, W]; w is the class's row of the final linear layer.

    The paper has no ReLU. On a head of average pooling and one linear layer this is Grad-CAM times
    the number of positions.

    Raises:
        OptionError: the logits are not a linear layer of the maps' averages.
    """
    activation, weight = _head(subject, subject.activation.float(), subject.logits.float())
    rows = weight[subject.target]
    if subject.objective.versus is not None:
        rows = rows - weight[subject.objective.versus]
    return subject.upsample((rows[:, :, None, None] * activation).sum(dim=1).relu())


def _head(subject: Subject, activation: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return the maps and the weight that make the logits, found by making them again.

    DenseNet has a ReLU between its last norm and the pooling, and it belongs to the maps then.
    """
    shape = (logits.shape[1], activation.shape[1])
    within = 2e-2 if subject.logits.element_size() < 4 else 1e-3
    for module in subject.model.modules():
        if not isinstance(module, nn.Linear) or tuple(module.weight.shape) != shape:
            continue
        weight = module.weight.detach().float()
        for maps in (activation, activation.relu()):
            made = maps.mean(dim=(2, 3)) @ weight.T
            if module.bias is not None:
                made = made + module.bias.detach().float()
            if bool((made - logits).abs().max() <= within * logits.abs().max()):
                return maps, weight
    raise OptionError(
        "CAM needs a head that averages the maps and reads the averages by one linear layer; the "
        f"logits of this model are not computed in this way from layer `{subject.layer}`",
        help="grad-cam weighs the maps of any head",
    )
