"""Parameters: their values, what a backward added to their gradients, how far a step moved them."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import torch
from torch import nn

from gradscope.capture.facts import misspelt_flags
from gradscope.capture.hooks import named_parameters
from gradscope.capture.stats import resolve
from gradscope.capture.sweep import measure_all
from gradscope.records import ParameterStats, TensorStats


def parameter_stats(
    model: nn.Module,
    *,
    owners: Collection[nn.Module] | None = None,
    held: Collection[nn.Parameter] | None = None,
) -> tuple[ParameterStats, ...]:
    """Statistics of every parameter and its ``.grad`` as they are now.

    Args:
        model: the module whose parameters are meant.
        owners: only parameters that one of these modules owns directly.
        held: the parameters that the optimizer has; None where there is no optimizer.
    """
    chosen = named_parameters(model)
    if owners is not None:
        owned = {p for module in owners for p in module.parameters(recurse=False)}
        chosen = {p: named for p, named in chosen.items() if p in owned}
    values = measure_all(chosen)
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


def updates(
    model: nn.Module, before: Mapping[nn.Parameter, torch.Tensor]
) -> dict[str, tuple[float | None, bool | None]]:
    """‖Δw‖ / ‖w‖ by parameter name, and whether any element moved.

    The ratio is None where ‖w‖ was 0 and where it is no number, both None where nobody can tell.
    """
    found: dict[str, tuple[float | None, bool | None]] = {}
    for parameter, named in named_parameters(model).items():
        if parameter not in before:
            continue
        old = before[parameter]
        # One difference at a time: all of them would weigh as much as the model.
        pair = statistics({"weight": old, "change": parameter.detach() - old})
        weight, change = pair["weight"], pair["change"]
        if weight is None or change is None or change.zeros is None:
            found[named.name] = None, None
            continue
        known = weight.norm and change.norm is not None and not (change.nan or change.inf)
        ratio = change.norm / weight.norm if known else None  # type: ignore[operator]
        found[named.name] = ratio, change.zeros < change.numel
    return found
