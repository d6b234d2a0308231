"""The gradients of a step: their norms, and whether they are finite."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from gradscope.capture.norms import gradient_norms
from gradscope.capture.reductions import BLOCK
from gradscope.capture.shards import local, versions_of

#: Gradients that were multiplied by one factor show it in their norms as far as these are rounded;
#: and a factor below this one may have taken elements to zero.
_ROUNDING, _LEAST = 1e-5, 1e-6
_ROUNDS_LITTLE = (torch.float32, torch.float64)


@dataclass(slots=True)
class Gradients:
    """The gradients at the end of a backward: their norms, and what tells whether they changed."""

    norms: dict[nn.Parameter, float] = field(default_factory=dict)
    versions: dict[nn.Parameter, tuple[int, int]] = field(default_factory=dict)
    _alike: list[frozenset[int]] = field(default_factory=list)

    def scaled_alike(self, parameters: Sequence[torch.Tensor]) -> None:
        """The gradients of these are about to be multiplied by one number, in one write each."""
        if self.norms:
            self._alike.append(frozenset(map(id, parameters)))

    def changed(self, parameters: Sequence[nn.Parameter]) -> dict[nn.Parameter, float]:
        """The norms of those whose gradient is another, or was written to, since it was read.

        Of those that were clipped by their norm, and not written to otherwise, only the small ones
        are read: the factor of these is that of all.
        """
        gradients = _of(parameters)
        now = versions_of(gradients)
        changed, once = [], []
        known = map(self.versions.get, parameters)
        for parameter, gradient, version, seen in zip(
            parameters, gradients, now, known, strict=True
        ):
            if version == seen:
                continue
            changed.append(parameter)
            written_once = seen == (version[0], version[1] - 1)
            if written_once and gradient.dtype in _ROUNDS_LITTLE:
                once.append(parameter)
        found = dict(self._scaled(once)) if self._alike and once else {}
        rest = [p for p in changed if p not in found] if found else changed
        if rest:
            found.update(zip(rest, gradient_norms(_of(rest)), strict=True))
        return found

    def _scaled(self, once: Sequence[nn.Parameter]) -> Iterator[tuple[nn.Parameter, float]]:
        """The norms of those that were multiplied by a factor that is known."""
        for number, clipped in enumerate(self._alike):
            others = frozenset[int]().union(*self._alike[:number], *self._alike[number + 1 :])
            mine = [p for p in once if id(p) in clipped and id(p) not in others]
            before = [self.norms[p] for p in mine]
            read = [i for i, p in enumerate(mine) if before[i] > 0 and p.numel() <= BLOCK]
            if not read:
                continue
            norms = gradient_norms(_of([mine[i] for i in read]))
            factors = [norm / before[i] for i, norm in zip(read, norms, strict=True)]
            low, high = min(factors), max(factors)
            if _LEAST < low <= high <= low * (1 + _ROUNDING):
                _, factor = max(zip(norms, factors, strict=True))
                yield from zip(mine, [norm * factor for norm in before], strict=True)
                yield from zip([mine[i] for i in read], norms, strict=True)

    def forget(self, written: Collection[nn.Parameter]) -> None:
        """The gradients of these were written to by what leaves their versions as they were."""
        for parameter in written:
            self.versions.pop(parameter, None)

    def after_step_of(self, held: Collection[nn.Parameter]) -> Gradients:
        """Those that wait for another optimizer's step, where one backward is for several."""
        return Gradients(
            {p: norm for p, norm in self.norms.items() if p not in held},
            {p: version for p, version in self.versions.items() if p not in held},
            self._alike,
        )


def _of(parameters: Sequence[nn.Parameter]) -> list[torch.Tensor]:
    return [p.grad for p in parameters if p.grad is not None]


def read(parameters: Sequence[nn.Parameter]) -> Gradients:
    """The gradients of those that have one, as they are now."""
    there, gradients = [], []
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is not None:
            there.append(parameter)
            gradients.append(gradient)
    if not there:
        return Gradients()
    norms = gradient_norms(gradients)
    return Gradients(
        dict(zip(there, norms, strict=True)),
        dict(zip(there, versions_of(gradients), strict=True)),
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
