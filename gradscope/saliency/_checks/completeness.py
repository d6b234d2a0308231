"""Completeness: whether a map's values add up to what the score gained over the baseline."""

from __future__ import annotations

import torch
from torch import Tensor

from gradscope.saliency._checks import CheckResults
from gradscope.saliency._subject import Subject


def completeness(subject: Subject, maps: Tensor, *, baseline: float = 0.0) -> list[CheckResults]:
    """Σ map against S(x) − S(x′), x′ being the baseline everywhere (Sundararajan et al. 2017).

    ``residual`` is Σ map minus the gain, ``residual_share`` its size over the gain's (None where
    there is no gain). Only methods that promise completeness should be judged by it, such as
    integrated-gradients, whose residual falls with its number of steps.
    """

    def make(items: slice) -> Tensor:
        return torch.full_like(subject.inputs[items], baseline)

    empty = subject.scores_of(make, len(subject.inputs))
    gains = (subject.scores - empty).double().cpu()
    sums = maps.flatten(1).double().cpu().sum(1)
    found: list[CheckResults] = []
    for total, gain in zip(sums.tolist(), gains.tolist(), strict=True):
        off = total - gain
        share = abs(off / gain) if gain else None
        found.append({"sum": total, "gain": gain, "residual": off, "residual_share": share})
    return found
