"""Reads the gradients of a step: their norms, and whether they are finite."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from gradscope.capture.reductions import BLOCK, gradient_norms
from gradscope.capture.shards import local, versions_of
from gradscope.records.tensors import TensorStats

#: Gradients that were multiplied by one factor show it in their norms as far as these are rounded;
#: and a factor below this one may have taken elements to zero.
_ROUNDING, _LEAST = 1 + 1e-5, 1e-12
_ROUNDS_LITTLE = (torch.float32, torch.float64)


@dataclass(slots=True)
class Gradients:
    """The gradients at the end of a backward: their norms, and versions that reveal later
    writes.
    """

    norms: dict[nn.Parameter, float] = field(default_factory=dict)
    versions: dict[nn.Parameter, tuple[int, int]] = field(default_factory=dict)
    _multiplied: list[tuple[frozenset[int], int]] = field(default_factory=list)

    def multiplied(self, parameters: Iterable[torch.Tensor], writes: int) -> None:
        """Note a multiplication of these gradients by one number, with PyTorch's count of writes to
        each: one for a clip, none for a gradient scaler.
        """
        if self.norms:
            self._multiplied.append((frozenset(map(id, parameters)), writes))

    def changed(self, parameters: Sequence[nn.Parameter]) -> dict[nn.Parameter, float]:
        """Return the norms of gradients that were replaced or written to since they were read.

        If all were only multiplied by one factor, only the small ones are read, because they give
        the factor of all.
        """
        gradients, found = _of(parameters), dict[nn.Parameter, float]()
        alike: dict[tuple[int, ...], list[nn.Parameter]] = {}
        rest = []
        seen = map(self.versions.get, parameters)
        now = versions_of(gradients)
        for parameter, gradient, was, version in zip(parameters, gradients, seen, now, strict=True):
            by: tuple[int, ...] = ()
            writes = 0
            for number, (covered, each) in enumerate(self._multiplied):
                if id(parameter) in covered:
                    by, writes = (*by, number), writes + each
            as_told = was == (version[0], version[1] - writes)
            if by and as_told and gradient.dtype in _ROUNDS_LITTLE:
                alike.setdefault(by, []).append(parameter)
            elif by or was != version:
                rest.append(parameter)
        for several in alike.values():
            norms = self._by_one_factor(several)
            found.update(norms)
            rest += [] if norms else several
        if rest:
            found.update(zip(rest, gradient_norms(_of(rest)), strict=True))
        return found

    def _by_one_factor(self, parameters: Sequence[nn.Parameter]) -> dict[nn.Parameter, float]:
        """Return the norms if the small gradients show a common factor; else nothing."""
        norms = self.norms
        read = [p for p in parameters if p.numel() <= BLOCK and norms[p] > 0]
        now = dict(zip(read, gradient_norms(_of(read)), strict=True))
        factors = [norm / norms[p] for p, norm in now.items()]
        if not factors or not _LEAST < min(factors) <= max(factors) <= min(factors) * _ROUNDING:
            return {}
        _, factor = max(zip(now.values(), factors, strict=True))
        return {p: norms[p] * factor for p in parameters} | now

    def after_step_of(self, held: Collection[nn.Parameter]) -> Gradients:
        """Return the gradients that wait for another optimizer's step, if one backward serves
        several.
        """
        return Gradients(
            {p: norm for p, norm in self.norms.items() if p not in held},
            {p: version for p, version in self.versions.items() if p not in held},
            self._multiplied,
        )


def _of(parameters: Sequence[nn.Parameter]) -> list[torch.Tensor]:
    return [p.grad for p in parameters if p.grad is not None]


def read(
    parameters: Sequence[nn.Parameter], measured: Mapping[int, TensorStats] | None = None
) -> Gradients:
    """Read the gradients that exist, at their present values.

    Args:
        parameters: the parameters.
        measured: the known statistics, by the ``id`` of the gradient.
    """
    there, gradients = [], []
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is not None:
            there.append(parameter)
            gradients.append(gradient)
    if not there:
        return Gradients()
    norms = gradient_norms(gradients, measured)
    return Gradients(
        dict(zip(there, norms, strict=True)),
        dict(zip(there, versions_of(gradients), strict=True)),
    )


def are_finite(parameters: Sequence[nn.Parameter]) -> bool:
    """Return True if all gradients of the parameters are finite."""
    gradients, total = [], 0.0
    for parameter in parameters:  # in every step: no frame of Python's for each
        gradient = parameter.grad
        if gradient is not None:
            if type(gradient) is not torch.Tensor:
                gradient = local(gradient)
            gradients.append(gradient)
            # A sum costs the least; one that overflows is checked again.
            plain = gradient.is_cpu and gradient.layout is torch.strided
            total += abs(gradient.sum().item()) if plain else math.nan
    return math.isfinite(total) or all(map(math.isfinite, gradient_norms(gradients)))


def small(parameters: Collection[nn.Parameter]) -> list[nn.Parameter]:
    """Return the parameters whose gradients are read in every step: biases and norms.

    Almost every layer has one, and a NaN or Inf spreads to all gradients upstream.
    """
    return [p for p in parameters if not (is_lazy(p) or p.is_nested) and p.numel() <= BLOCK]
