"""Finds blank maps, and the reason."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from gradscope.saliency._checks import CheckResults
from gradscope.saliency._subject import Subject


def blank(subject: Subject, maps: Tensor, reads: Sequence[str]) -> list[CheckResults]:
    """Return ``blank`` for each image: one sentence on why its map has no structure, else None.

    ``reads`` is the method's attribute: the layer's activation and gradient are read only for
    methods that use them.
    """
    return [{"blank": _why(subject, maps[i], i, reads)} for i in range(len(maps))]


def _why(subject: Subject, values: Tensor, i: int, reads: Sequence[str]) -> str | None:
    if not bool(values.isfinite().all()):
        return "the map holds NaN or Inf: so does the score, or what it was computed from"
    low, high = float(values.min()), float(values.max())
    # The rounding of a constant map is no shape either.
    if high - low > 1e-6 * max(abs(low), abs(high)):
        return None
    state = "zero everywhere" if high == 0 == low else f"{high:.4g} everywhere"
    return f"the map is {state}: {_reason(subject, i, reads)}"


def _reason(subject: Subject, i: int, reads: Sequence[str]) -> str:
    if not bool(subject.logits[i].isfinite().all()):
        return "the logits of this picture are NaN or Inf"
    found = _in_layer(subject, i) if "layer" in reads else None
    if found:
        return found
    if bool((subject.inputs[i] == subject.inputs[i].flatten()[0]).all()):
        return "every pixel of the input has the same value"
    if "input" in reads and not bool(subject.input_gradient[i].any()):
        return (
            "the gradient of the score is zero at every pixel, as upstream of a ReLU that clips "
            "this class's logit or a saturated activation; occlusion needs no gradient"
        )
    if "scores" in reads:
        return "the score did not move with any change of the picture that the method tried"
    return "nothing that the method reads differs from place to place"


def _in_layer(subject: Subject, i: int) -> str | None:
    """Return why a CAM method gets no map from the layer, with advice; None if it gets one."""
    name = f"`{subject.layer}`"
    activation, gradient = subject.activation[i].float(), subject.gradient[i].float()
    if activation[0].numel() == 1:
        return f"{name} is the wrong layer: its maps have one position; name an earlier one"
    if not bool(activation.any()):
        return f"{name} is silent: its output is zero for this picture; name an earlier layer"
    if not bool(gradient.any()):
        return (
            f"no gradient arrives at the map of {name}: the score does not depend on these "
            "positions (the wrong layer: name an earlier one), a clipped activation after it stops "
            "the gradient, or the weights of a layer after it are all zero"
        )
    flat = activation.flatten(1)
    if bool((flat == flat[:, :1]).all()):
        return f"every channel of {name} is constant over the picture; name an earlier layer"
    if bool((gradient.mean((1, 2)) <= 0).all()):
        return (
            f"all weights are negative: every channel of {name} speaks against the class, and the "
            "ReLU cuts that off; --why-not shows it"
        )
    together = (gradient.mean((1, 2), keepdim=True) * activation).sum(0)
    if bool((together <= 0).all()):
        return (
            f"the weighted maps of {name} add up to nothing positive: the layer speaks against "
            "the class, and the ReLU cuts that off; --why-not shows it"
        )
    return None
