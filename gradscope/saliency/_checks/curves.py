"""Measures deletion and insertion: how fast the class's probability falls, or rises, with the
pixels that a map ranks highest.

A map that does not beat a random one does not show the pixels that the model uses.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gradscope.saliency._checks import CheckResults
from gradscope.saliency._forward import probabilities
from gradscope.saliency._subject import Subject


class Areas(NamedTuple):
    """The areas under both curves for each image, [N]: low deletion and high insertion are good."""

    deletion: Tensor
    insertion: Tensor


def curves(
    subject: Subject, maps: Tensor, *, steps: int = 20, baseline: float = 0.0, randoms: int = 3
) -> list[CheckResults]:
    """Return the areas of each image's map, and the mean areas of random maps."""
    own = areas(subject, maps, steps=steps, baseline=baseline)
    draw = subject.generator()
    chance = [
        areas(subject, torch.rand(maps.shape, generator=draw), steps=steps, baseline=baseline)
        for _ in range(randoms)
    ]
    deleted = torch.stack([area.deletion for area in chance]).mean(0)
    inserted = torch.stack([area.insertion for area in chance]).mean(0)
    return [
        {
            "deletion": float(own.deletion[i]),
            "deletion_random": float(deleted[i]),
            "insertion": float(own.insertion[i]),
            "insertion_random": float(inserted[i]),
        }
        for i in range(len(maps))
    ]


def areas(subject: Subject, maps: Tensor, *, steps: int = 20, baseline: float = 0.0) -> Areas:
    """Return the areas under the target's probability over the share of pixels (Petsiuk et al.
    2018).

    Pixels are removed, all channels at once, from the highest value of the map to the lowest, in
    ``steps`` equal parts; the seed sets the order of equal values. Deletion sets them to the
    baseline, insertion starts from the baseline (the paper: from a blurred picture) and brings them
    back. The area is computed by the trapezoidal rule over [0, 1], so it lies in [0, 1].
    """
    images, pixels = len(maps), maps[0].numel()
    ranks = _ranks(maps, subject.generator()).to(subject.inputs.device)
    gone = torch.linspace(0, pixels, steps + 1).round().to(ranks.device)
    inputs = subject.inputs

    def make(items: slice) -> Tensor:
        # Image fastest, then the number of pixels gone, then deletion or insertion.
        item = torch.arange(items.start, items.stop, device=ranks.device)
        owner, step, inserts = item % images, item // images % (steps + 1), item // half
        first = ranks[owner] < gone[step, None, None]
        covered = first ^ (inserts == 1)[:, None, None]
        return inputs[owner].masked_fill_(covered[:, None], baseline)

    def run(batch: Tensor, items: slice) -> Tensor:
        owner = torch.arange(items.start, items.stop, device=batch.device) % images
        shares = probabilities(subject.scores_by_class(batch, owner))
        return shares.gather(1, target[owner, None])[:, 0]

    half = images * (steps + 1)
    target = subject.target
    scores = subject.batches.scores(make, run, 2 * half).double().cpu()
    deletion, insertion = scores.view(2, steps + 1, images)
    along = (gone / pixels).double().cpu()
    return Areas(torch.trapezoid(deletion.T, along), torch.trapezoid(insertion.T, along))


def _ranks(maps: Tensor, generator: torch.Generator) -> Tensor:
    """Return each pixel's rank from the highest value (0) to the lowest, [N, H, W]."""
    flat = maps.flatten(1).cpu()
    # Shuffled first: a stable sort leaves ties as they came, which would be from the top left.
    shuffled = torch.randperm(flat.shape[1], generator=generator)
    order = shuffled[flat[:, shuffled].argsort(dim=1, descending=True, stable=True)]
    places = torch.arange(flat.shape[1]).expand_as(order)
    return torch.empty_like(order).scatter_(1, order, places).view(maps.shape)
