"""Reads an optimizer's moments of each gradient, by their names in its state."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gradscope.capture.shards import is_plain_or_spread, local
from gradscope.capture.small_tensors import measure_all
from gradscope.capture.stats import resolve

#: The names in PyTorch's optimizers, and in most others.
_FIRST = ("exp_avg", "momentum_buffer")
_SECOND = ("exp_avg_sq", "square_avg", "sum", "variance")


@dataclass(frozen=True, slots=True)
class Moments:
    """The norms of the first and of the second moment of one parameter, without bias correction.

    ``spread`` is the standard deviation of the second moment's elements divided by their mean: 0 if
    all are equal, √(n − 1) if one of n has all of it. Bias correction does not change it.
    """

    first: float | None = None
    second: float | None = None
    spread: float | None = None


@torch.no_grad()
def moments(
    optimizer: Optimizer, parameters: Sequence[nn.Parameter]
) -> dict[nn.Parameter, Moments]:
    """Return the moments of each parameter; None if the state has none, or in an unknown form."""
    states = {p: optimizer.state.get(p, {}) for p in parameters}
    kept = {p: kept_moments(optimizer, p) for p in parameters}
    first = {p: one for p, (one, _) in kept.items() if one is not None}
    second = {p: one for p, (_, one) in kept.items() if one is not None}
    measured = measure_all([*first.values(), *second.values()])
    done = resolve(measured)
    stats = [done[id(one)] for one in measured]
    firsts = dict(zip(first, stats, strict=False))
    seconds = dict(zip(second, stats[len(first) :], strict=True))
    found = {}
    for p, state in states.items():
        one, other = firsts.get(p), seconds.get(p)
        spread = None
        if other is not None and other.mean and other.std is not None:
            spread = other.std / other.mean
        found[p] = Moments(
            None if one is None else one.norm, None if other is None else other.norm, spread
        )
        if is_factored(optimizer, p):
            found[p] = _factored(state["row_var"], state["col_var"])
    return found


def spread_of(total: float, squares: float, count: int) -> float | None:
    """Return ``Moments.spread`` of elements with this sum and this sum of squares."""
    mean = total / count
    return math.sqrt(max(0.0, squares / count - mean * mean)) / mean if mean else None


def kept_moments(
    optimizer: Optimizer, parameter: nn.Parameter
) -> tuple[Tensor | None, Tensor | None]:
    """Return the first and the second moment of a parameter, as its optimizer keeps them."""
    state = optimizer.state.get(parameter, {})
    return _named(parameter, state, _FIRST), _named(parameter, state, _SECOND)


def is_factored(optimizer: Optimizer, parameter: nn.Parameter) -> bool:
    """Return True if the second moment of a parameter is a product of rows and columns."""
    state = optimizer.state.get(parameter, {})
    return isinstance(state.get("row_var"), Tensor) and isinstance(state.get("col_var"), Tensor)


def hidden_moments(optimizer: Optimizer | None) -> tuple[str, ...]:
    """Return a notice if an optimizer's moments are unknown, for example 8-bit states.

    Such a state has a value as large as the parameter that is not in plain floating-point numbers.
    """
    hidden = optimizer is not None and any(
        isinstance(one, Tensor)
        and 1 < one.numel() >= parameter.numel()
        and not (is_plain_or_spread(one) and one.is_floating_point())
        for parameter, state in optimizer.state.items()
        if isinstance(parameter, Tensor) and isinstance(state, Mapping)
        for one in state.values()
    )
    if not hidden:
        return ()
    kind = type(optimizer).__name__
    return (f"m_norm and v_norm are unknown: {kind} keeps its state in a special format",)


def _named(
    parameter: nn.Parameter, state: Mapping[str, Any], names: Sequence[str]
) -> Tensor | None:
    """Return the tensor with one of these names and an element for each of the parameter's."""
    one = next((state[name] for name in names if name in state), None)
    if (
        isinstance(one, Tensor)
        and is_plain_or_spread(one)
        and one.is_floating_point()
        and local(one).numel() == local(parameter).numel()
    ):
        return one
    return None


def _factored(rows: Tensor, columns: Tensor) -> Moments:
    """Return Adafactor's second moment: ``rows @ columns`` over the mean of the rows."""
    rows, columns = local(rows).double(), local(columns).double()
    mean = rows.mean(dim=-2, keepdim=True)
    inner = (columns / mean.clamp(min=torch.finfo(torch.float64).tiny)).reshape(
        *columns.shape[:-2], -1
    )
    outer = rows.reshape(*rows.shape[:-2], -1)
    count = outer.shape[-1] * inner.shape[-1] * math.prod(rows.shape[:-2])
    total = (outer.sum(-1) * inner.sum(-1)).sum().item()
    squares = (outer.square().sum(-1) * inner.square().sum(-1)).sum().item()
    return Moments(None, math.sqrt(squares), spread_of(total, squares, count))
