"""Parameters: their values, and what a backward added to their gradients."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from gradscope.capture.facts import misspelt_flags
from gradscope.capture.names import named_parameters
from gradscope.capture.small_tensors import measure_all, surely_finite
from gradscope.capture.stats import Measured, head_of, resolve
from gradscope.records.modules import ParameterStats
from gradscope.records.tensors import TensorStats


def parameter_count(module: nn.Module) -> int:
    """Elements of the parameters of a module and of all below it, each parameter once."""
    return sum(0 if is_lazy(p) else p.numel() for p in module.parameters())


def parameter_stats(
    model: nn.Module,
    *,
    shown: Collection[nn.Module] | None = None,
    held: Collection[nn.Parameter] | None = None,
) -> tuple[ParameterStats, ...]:
    """Statistics of every parameter and its ``.grad`` as they are now.

    Args:
        model: the module whose parameters are meant.
        shown: the modules whose own parameters are read in full, all without it; of the values of
            others only ``nan`` and ``inf`` are sure to be there.
        held: the parameters that the optimizer has; None where there is no optimizer.
    """
    chosen = named_parameters(model)
    passed: set[nn.Parameter] = set()
    if shown is not None:
        passed = set(chosen).difference(p for m in shown for p in m.parameters(recurse=False))
    values = _values(chosen, passed)
    arrived = {p: p.grad for p in chosen if p.grad is not None}
    found = dict(zip(arrived, measure_all(arrived.values()), strict=True))
    gradients = [found.get(p) for p in chosen]
    done = resolve([*values, *(g for g in gradients if g is not None)])
    return tuple(
        ParameterStats(
            name=named.name,
            shape=done[id(value)].shape,
            requires_grad=parameter.requires_grad,
            value=done[id(value)],
            gradient=None if gradient is None else done[id(gradient)],
            aliases=named.aliases,
            in_optimizer=None if held is None else parameter in held,
            misspelt=misspelt_flags(parameter),
        )
        for (parameter, named), value, gradient in zip(
            chosen.items(), values, gradients, strict=True
        )
    )


def _values(parameters: Collection[nn.Parameter], passed: set[nn.Parameter]) -> list[Measured]:
    """``measure`` of each value; of those passed over it is only asked whether all is finite."""
    full = [p for p in parameters if not (p in passed and surely_finite(p))]
    found: dict[nn.Parameter, Measured] = dict(zip(full, measure_all(full), strict=True))
    return [found.get(p) or replace(head_of(p), nan=0, inf=0) for p in parameters]


def statistics(tensors: Mapping[str, torch.Tensor | None]) -> dict[str, TensorStats | None]:
    """Several tensors measured and read back together."""
    there = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    measured = dict(zip(there, measure_all(there.values()), strict=True))
    done = resolve(measured.values())
    return {name: done[id(measured[name])] if name in measured else None for name in tensors}


def total_norm(norms: Collection[float | None]) -> float | None:
    """The L2 norm over all tensors from the norms of each; None where there is none."""
    present = [norm for norm in norms if norm is not None]
    return math.hypot(*present) if present else None


def any_nonfinite(gradients: Iterable[TensorStats | None]) -> bool:
    """Return True if any statistics show a NaN or Inf; None is skipped."""
    return any(stats.nan or stats.inf for stats in gradients if stats is not None)
