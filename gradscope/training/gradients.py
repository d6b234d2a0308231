"""The gradients of a step: their norms, and whether they are finite."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from gradscope.capture.norms import gradient_norms
from gradscope.capture.reductions import BLOCK
from gradscope.capture.shards import local, version_of


@dataclass(slots=True)
class Gradients:
    """The gradients at the end of a backward: their norms, and what tells whether they changed."""

    norms: dict[nn.Parameter, float] = field(default_factory=dict)
    versions: dict[nn.Parameter, tuple[int, int]] = field(default_factory=dict)

    def changed(self, parameter: nn.Parameter) -> bool:
        """Whether a gradient is another one, or was written to, since it was read."""
        gradient = parameter.grad
        assert gradient is not None
        return self.versions.get(parameter) != version_of(gradient)

    def forget(self, written: Collection[nn.Parameter]) -> None:
        """The gradients of these were written to by what leaves their versions as they were."""
        for parameter in written:
            self.versions.pop(parameter, None)

    def after_step_of(self, held: Collection[nn.Parameter]) -> Gradients:
        """Those that wait for another optimizer's step, where one backward is for several."""
        return Gradients(
            {p: norm for p, norm in self.norms.items() if p not in held},
            {p: version for p, version in self.versions.items() if p not in held},
        )


def read(parameters: Sequence[nn.Parameter]) -> Gradients:
    """The gradients of those that have one, as they are now."""
    there = {p: p.grad for p in parameters if p.grad is not None}
    if not there:
        return Gradients()
    norms = gradient_norms(list(there.values()))
    return Gradients(
        dict(zip(there, norms, strict=True)),
        {p: version_of(g) for p, g in there.items()},
    )


def are_finite(parameters: Sequence[nn.Parameter]) -> bool:
    """Whether their gradients are."""
    gradients, total = [], 0.0
    for parameter in parameters:  # in every step: no frame of Python's for each
        gradient = parameter.grad
        if gradient is not None:
            if type(gradient) is not torch.Tensor:
                gradient = local(gradient)
            gradients.append(gradient)
            # A sum costs the least; one that overflows is looked at again.
            plain = gradient.is_cpu and gradient.layout is torch.strided
            total += abs(gradient.sum().item()) if plain else math.nan
    return math.isfinite(total) or all(map(math.isfinite, gradient_norms(gradients)))


def small(parameters: Collection[nn.Parameter]) -> list[nn.Parameter]:
    """Those whose gradients are read in every step: biases and norms.

    There is one in nearly every layer, and what is not finite is so in all that backward comes to
    later.
    """
    return [p for p in parameters if p.numel() <= BLOCK]
