"""Why not class B, and why A rather than B: a map, and what removing its region really does."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradscope.saliency import grad_cam
from gradscope.saliency._subject import Objective, Subject

#: The region is where the map is highest: this share of the image's pixels.
AREA = 0.2

#: As many regions of the same form elsewhere tell what removing any such area does.
ELSEWHERE = 8


@dataclass(frozen=True, slots=True)
class Contrast:
    """A map [N, H, W] and the measurement that goes with it; each number is per image, [N].

    ``before`` and ``after`` are the quantity with the region there and replaced by zeros of the
    model's input space, ``elsewhere`` the mean of ``after`` over regions of the same form at other
    places, ``area`` the region's share of the image. ``quantity`` says what is measured.
    """

    map: Tensor
    quantity: str
    before: Tensor
    after: Tensor
    elsewhere: Tensor
    area: Tensor


def why_not(subject: Subject, class_id: int) -> Contrast:
    """What speaks against class B: relu(Σ_k (1/Z Σ −∂S_B/∂A^k) A^k), and S_B without it.

    Selvaraju et al. 2017, arXiv 1610.02391, section on counterfactual explanations. Where the map
    is right, B's logit rises once the region is removed.
    """
    against = Objective(target=_all(subject, class_id))
    against.check(subject.logits.shape[1])
    activation, gradient = subject.layer_gradient(against)
    found = subject.upsample(grad_cam.weighted(activation, -gradient).relu())
    return _measured(subject, found, against, f"logit of class {class_id}")


def versus(subject: Subject, other: int) -> Contrast:
    """Why the target A rather than B: Grad-CAM on S_A − S_B, and that gap without the region.

    Where the map is right, the gap shrinks once the region is removed.
    """
    between = replace(subject.objective, versus=_all(subject, other))
    between.check(subject.logits.shape[1])
    activation, gradient = subject.layer_gradient(between)
    found = subject.upsample(grad_cam.weighted(activation, gradient).relu())
    return _measured(subject, found, between, f"logit gap to class {other}")


def _all(subject: Subject, class_id: int) -> Tensor:
    return torch.full((len(subject.inputs),), class_id, device=subject.inputs.device)


def _measured(subject: Subject, found: Tensor, objective: Objective, quantity: str) -> Contrast:
    """The objective with the map's region removed, and with the region moved elsewhere."""
    flat = found.flatten(1)
    least = flat.topk(max(1, int(AREA * flat.shape[1])), dim=1).values[:, -1, None, None]
    region = (found >= least) & (found > 0)
    height, width = region.shape[1:]
    generator, images = subject.generator(), len(found)
    moves = [(0, 0)]
    for _ in range(ELSEWHERE):
        down = int(torch.randint(1, height, (), generator=generator)) if height > 1 else 0
        right = int(torch.randint(1, width, (), generator=generator)) if width > 1 else 0
        moves.append((down, right))

    def make(rows: slice) -> Tensor:
        made = []
        for row in range(*rows.indices(images * len(moves))):
            move, image = moves[row // images], row % images
            removed = region[image].roll(move, dims=(0, 1))
            made.append(subject.inputs[image].masked_fill(removed, 0.0))
        return torch.stack(made)

    scores = subject.scores_of(make, images * len(moves), objective=objective)
    after, *others = scores.view(len(moves), images)
    everyone = torch.arange(images, device=subject.logits.device)
    return Contrast(
        map=found,
        quantity=quantity,
        before=objective(subject.logits, everyone),
        after=after,
        elsewhere=torch.stack(others).mean(dim=0),
        area=region.flatten(1).float().mean(dim=1),
    )
