"""Parameters: their values, and what a backward added to their gradients."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from gradscope.capture.facts import misspelt_flags
from gradscope.capture.names import named_parameters, parameters_below, parameters_of
from gradscope.capture.stats import Measured, head_of, measure_all, resolve, surely_finite
from gradscope.records.modules import ParameterStats
from gradscope.records.tensors import TensorStats


def parameter_count(module: nn.Module) -> int:
    """Return the number of elements in the parameters of a module and its submodules, each
    parameter once."""
    return _count(parameters_of(module))


def parameter_counts(model: nn.Module) -> dict[nn.Module, int]:
    """Return ``parameter_count`` of every module."""
    return {module: _count(own) for module, own in parameters_below(model).items()}


def _count(parameters: Iterable[nn.Parameter]) -> int:
    return sum(0 if is_lazy(p) else p.numel() for p in parameters)


def parameter_stats(
    model: nn.Module,
    *,
    shown: Collection[nn.Module] | None = None,
    held: Collection[nn.Parameter] | None = None,
) -> tuple[ParameterStats, ...]:
    """Return the statistics of every parameter and its ``.grad``.

    Args:
        model: the model.
        shown: the modules whose own parameters are read in full; None: all. For other
            parameters, only ``nan`` and ``inf`` of the value are reliable.
        held: the parameters of the optimizer; None without an optimizer.
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
    """Measure each value; for skipped ones, only test whether all elements are finite."""
    full = [p for p in parameters if not (p in passed and surely_finite(p))]
    found: dict[nn.Parameter, Measured] = dict(zip(full, measure_all(full), strict=True))
    return [found.get(p) or replace(head_of(p), nan=0, inf=0) for p in parameters]


def statistics(tensors: Mapping[str, torch.Tensor | None]) -> dict[str, TensorStats | None]:
    """Measure several tensors, and read the results back together."""
    there = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    measured = dict(zip(there, measure_all(there.values()), strict=True))
    done = resolve(measured.values())
    return {name: done[id(measured[name])] if name in measured else None for name in tensors}


def total_norm(norms: Collection[float | None]) -> float | None:
    """Return the L2 norm over all tensors, from the norm of each; None if there is none."""
    present = [norm for norm in norms if norm is not None]
    return math.hypot(*present) if present else None


def any_nonfinite(gradients: Iterable[TensorStats | None]) -> bool:
    """Return True if any statistics show a NaN or Inf; None is skipped."""
    return any(stats.nan or stats.inf for stats in gradients if stats is not None)
