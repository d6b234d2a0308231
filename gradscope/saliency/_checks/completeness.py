"""Checks completeness: a map's values must add up to the score's gain over the baseline."""

from __future__ import annotations

import torch
from torch import Tensor

from gradscope.saliency._checks import CheckResults
from gradscope.saliency._subject import Subject

#: Two forwards of one picture may differ by some roundings of its score: that is no gain.
_ROUNDINGS = 64


def completeness(subject: Subject, maps: Tensor, *, baseline: float = 0.0) -> list[CheckResults]:
    """Compare Σ map with the gain S(x) − S(x′), x′ being the baseline everywhere (Sundararajan et
    al.

    2017). ``residual`` is Σ map minus the gain, ``residual_share`` its size over the gain's (None
    if the gain is only rounding). Only methods that promise completeness should be judged by it,
    such as integrated-gradients, whose residual falls with its number of steps.
    """

    def make(items: slice) -> Tensor:
        return torch.full_like(subject.inputs[items], baseline)

    empty = subject.scores_of(make, len(subject.inputs))
    gains = (subject.scores - empty).double().cpu()
    sums = maps.flatten(1).double().cpu().sum(1)
    largest = torch.maximum(subject.scores.abs(), empty.abs()).double().cpu()
    least = largest * (_ROUNDINGS * torch.finfo(empty.dtype).eps)
    found: list[CheckResults] = []
    for total, gain, rounding in zip(sums.tolist(), gains.tolist(), least.tolist(), strict=True):
        off = total - gain
        share = abs(off / gain) if abs(gain) > rounding else None
        found.append({"sum": total, "gain": gain, "residual": off, "residual_share": share})
    return found
