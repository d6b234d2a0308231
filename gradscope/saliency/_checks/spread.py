"""Measures the spread over seeds: how much a random method's map depends on the seed."""

from __future__ import annotations

from itertools import combinations

import torch
from torch import Tensor

from gradscope.saliency._checks import CheckResults
from gradscope.saliency._checks.randomisation import Attribute, spearman
from gradscope.saliency._subject import Subject


def spread(
    subject: Subject, attribute: Attribute, maps: Tensor, *, seeds: int = 3
) -> list[CheckResults]:
    """Run the method again with other seeds; the given map is the first of ``seeds``.

    ``spread`` is the root mean square over pixels of the standard deviation over seeds, as a share
    of the mean map's range (None if that is constant). ``seed_similarity`` is the lowest rank
    correlation of two of the maps.
    """
    drawn = [maps]
    for seed in range(subject.seed + 1, subject.seed + seeds):
        with subject.again(seed=seed) as other:
            drawn.append(attribute(other))
    return [_of_one(torch.stack([m[i].double() for m in drawn])) for i in range(len(maps))]


def _of_one(maps: Tensor) -> CheckResults:
    """Return the figures of one image; ``maps`` is [seeds, H, W]."""
    mean = maps.mean(0)
    span = float(mean.max() - mean.min())
    noise = float(maps.var(0).mean().sqrt()) if len(maps) > 1 else 0.0
    pairs = [spearman(a, b) for a, b in combinations(maps, 2)]
    defined = [rho for rho in pairs if rho is not None]
    return {
        "seeds": float(len(maps)),
        "spread": noise / span if span else None,
        "seed_similarity": min(defined) if defined else None,
    }
