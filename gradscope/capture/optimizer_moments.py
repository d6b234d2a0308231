"""The moments that an optimizer keeps of each gradient, by the names that its state gives them."""

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

#: Those of PyTorch's optimizers, and of most that are written like them.
_FIRST = ("exp_avg", "momentum_buffer")
_SECOND = ("exp_avg_sq", "square_avg", "sum", "variance")


@dataclass(frozen=True, slots=True)
class Moments:
    """The norms of the first and of the second moment of one parameter, without bias correction.

    ``spread`` is the standard deviation of the second moment's elements over their mean: 0 where
    all are equal, √(n − 1) where one of n has all of it. Bias correction does not change it.
    """

    first: float | None = None
    second: float | None = None
    spread: float | None = None


@torch.no_grad()
def moments(
    optimizer: Optimizer, parameters: Sequence[nn.Parameter]
) -> dict[nn.Parameter, Moments]:
    """The moments of each parameter: None where the state has none, or holds them otherwise."""
    states = {p: optimizer.state.get(p, {}) for p in parameters}
    first = _named(states, _FIRST)
    second = _named(states, _SECOND)
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
        rows, columns = state.get("row_var"), state.get("col_var")
        if isinstance(rows, Tensor) and isinstance(columns, Tensor):
            found[p] = _factored(rows, columns)
    return found


def hidden_moments(optimizer: Optimizer | None) -> tuple[str, ...]:
    """The notice that an optimizer's moments are not known, as those with 8-bit states.

    Such a state holds something as large as a parameter that is not plain floating-point numbers.
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
    return (f"m_norm and v_norm are unknown: {kind} keeps its state in a format of its own",)


def _named(
    states: Mapping[nn.Parameter, Mapping[str, Any]], names: Sequence[str]
) -> dict[nn.Parameter, Tensor]:
    """Return by parameter the tensor with one of these names and an element for each of the
    parameter's.
    """
    found = {}
    for parameter, state in states.items():
        one = next((state[name] for name in names if name in state), None)
        if (
            isinstance(one, Tensor)
            and is_plain_or_spread(one)
            and one.is_floating_point()
            and local(one).numel() == local(parameter).numel()
        ):
            found[parameter] = one
    return found


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
    average = total / count
    spread = math.sqrt(max(0.0, squares / count - average**2)) / average if average else None
    return Moments(None, math.sqrt(squares), spread)
