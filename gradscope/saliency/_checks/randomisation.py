"""Randomises the weights in a cascade: a map that stays the same does not show the model."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from gradscope.errors import message_of
from gradscope.saliency._checks import CheckResults
from gradscope.saliency._subject import Subject


def spearman(a: Tensor, b: Tensor) -> float | None:
    """Return Spearman's rank correlation of two maps' values; None if one is constant."""
    left, right = (_midranks(m.flatten().double().cpu()) for m in (a, b))
    left, right = left - left.mean(), right - right.mean()
    scale = float(left.norm() * right.norm())
    return float(left @ right) / scale if scale else None


def _midranks(values: Tensor) -> Tensor:
    """Return the rank of each value; equal values share their mean rank."""
    ordered = values.sort().values
    below, upto = (torch.searchsorted(ordered, values, right=right) for right in (False, True))
    return (below + upto + 1).double() / 2


Attribute = Callable[[Subject], Tensor]


def randomisation(
    subject: Subject, attribute: Attribute, maps: Tensor, *, stages: int = 4
) -> list[CheckResults]:
    """Measure how similar the map stays while weights are shuffled (Adebayo et al., 1810.03292).

    Shuffles the values of each parameter, from the output towards the input: first the last layer,
    then the others in ``stages`` equal parts. Shuffled weights keep their scale, so maps change
    because of what was learned. The target stays the same. Similarity is Spearman's rank
    correlation of absolute values: ``similarity`` with all weights shuffled, ``cascade`` after
    each stage, named by its last layer. It is None if the map has become constant. Near 1, the map
    shows the picture rather than the model.

    Works on a copy of the model.
    """
    try:
        model = copy.deepcopy(subject.model)
    except (RuntimeError, TypeError) as error:
        note = f"not randomised: the model cannot be copied ({message_of(error)})"
        return [{"similarity": None, "cascade": [], "similarity_note": note} for _ in maps]
    layers = _from_the_output(model)
    cascade: list[list[tuple[str, float | None]]] = [[] for _ in maps]
    draw, done = subject.generator(), 0
    for stop in _stops(len(layers), stages):
        for _, layer in layers[done:stop]:
            _shuffle(layer, draw)
        done = stop
        with subject.again(model) as other:
            changed = attribute(other)
        for rows, before, after in zip(cascade, maps, changed, strict=True):
            rows.append((layers[stop - 1][0], spearman(before.abs(), after.abs())))
    return [{"similarity": rows[-1][1] if rows else None, "cascade": rows} for rows in cascade]


def _from_the_output(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the modules with their own parameters, the last registered first."""
    own = [
        (name or "(model)", module)
        for name, module in model.named_modules()
        if any(True for _ in module.parameters(recurse=False))
    ]
    return own[::-1]


def _stops(layers: int, stages: int) -> list[int]:
    """Return the numbers of layers after which the map is computed: one, and evenly on."""
    stops = {min(1, layers), *(round(layers * k / (stages - 1)) for k in range(1, stages))}
    return sorted(stops - {0})


def _shuffle(module: nn.Module, generator: torch.Generator) -> None:
    with torch.no_grad():
        for parameter in module.parameters(recurse=False):
            order = torch.randperm(parameter.numel(), generator=generator)
            values = parameter.flatten()[order.to(parameter.device)]
            parameter.copy_(values.view_as(parameter))
