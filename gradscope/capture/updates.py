"""Measures the size and direction of an optimizer's step for each weight, and facts on its state.

Δw is the difference of the weight and its copy from before the step. Without a copy, it is computed
from the state of PyTorch's optimizers (``optimizer_formulas.py``).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from gradscope.capture.names import named_parameters
from gradscope.capture.optimizer_formulas import Decay
from gradscope.capture.optimizer_steps import (
    BLOCK,
    LastStep,
    Moments,
    flat,
    moments,
    spread_of,
    wide,
)
from gradscope.capture.shards import is_spread, local
from gradscope.capture.stats import Measured, measure, on_host, resolve
from gradscope.records.modules import ParameterStats
from gradscope.records.tensors import TensorStats

#: Norm below which a float32 sum of products may have lost some to underflow.
_TINY = 1e-30
#: Optimizers whose update of a matrix is a function of its singular values, and the largest matrix
#: whose own are computed.
_OF_MATRICES, _LARGEST_MATRIX = ("muon", "shampoo", "soap"), 1 << 18


@dataclass(frozen=True, slots=True)
class Update:
    """The change of a parameter, or its shard, by one step. A figure that does not exist is None.

    Attributes:
        norm: ‖Δw‖.
        weight: ‖w‖ before the step.
        ratio: ‖Δw‖ / ‖w‖.
        moved: True if any element changed; None if unknown.
        rms: the root mean square of Δw.
        effective_lr: ‖Δw‖ / ‖g‖, g being the gradient as the optimizer got it.
        cosine: the cosine of Δw and g; −1 is steepest descent.
        decay_share: the share of weight decay, see ``_decay_share``.
        m_norm: the norm of the first moment, or of the momentum.
        v_norm: the norm of the second moment.
        v_spread: the standard deviation of the second moment's elements over their mean.
        spectral_norm: the largest singular value of Δw, for optimizers that orthogonalise it.
        stable_rank: ‖Δw‖² divided by its square.
    """

    norm: float | None = None
    weight: float | None = None
    ratio: float | None = None
    moved: bool | None = None
    rms: float | None = None
    effective_lr: float | None = None
    cosine: float | None = None
    decay_share: float | None = None
    m_norm: float | None = None
    v_norm: float | None = None
    v_spread: float | None = None
    spectral_norm: float | None = None
    stable_rank: float | None = None

    def on(self, parameter: ParameterStats, **more: Any) -> ParameterStats:
        """Return the parameter with these figures, and with other changes."""
        return replace(parameter, **{new: getattr(self, name) for name, new in _names()}, **more)


@functools.cache
def _names() -> tuple[tuple[str, str], ...]:
    """Return the fields of an update that a parameter's record has, with their names there."""
    renamed = {"norm": "update_norm", "ratio": "update_ratio", "rms": "update_rms"}
    own = (field.name for field in fields(Update) if field.name != "weight")
    return tuple((name, renamed.get(name, name)) for name in own)


@dataclass(frozen=True, slots=True)
class _Sizes:
    """The numbers of one parameter's step from which its figures are computed."""

    numel: int
    weight: float | None = None  # ‖w‖ before the step
    change: float | None = None  # ‖Δw‖; None where it is NaN or Inf
    moved: bool | None = None
    gradient: float | None = None  # ‖g‖
    product: float | None = None  # of −Δw and the gradient
    rest: float | None = None  # the norm of the part of Δw that is not weight decay
    spectral: float | None = None


@dataclass(slots=True)
class _Row:
    """One parameter, before its numbers are read back. ``moved`` is −Δw."""

    name: str
    parameter: nn.Parameter
    copied: bool
    weight: Measured
    moved: Measured
    product: Tensor | None = None  # of −Δw and the gradient
    length: Tensor | None = None  # of the gradient
    rest: Tensor | None = None  # the norm of the part of −Δw that is not weight decay
    spectral: Tensor | None = None


@torch.no_grad()
def updates(
    model: nn.Module,
    before: Mapping[nn.Parameter, Tensor],
    optimizer: Optimizer | None,
    *,
    last: LastStep | None = None,
) -> dict[str, Update]:
    """Return updates by parameter name, for the optimizer's latest step; gradients must still
    exist.

    The differences overwrite the copies, so they need no further memory.

    Args:
        model: the model.
        before: copies of weights, or of their shards, from before the step.
        optimizer: the optimizer; None if the script moved the weights without one.
        last: the optimizer's step, if the caller already has it.
    """
    if last is None and optimizer is not None:
        last = LastStep(optimizer)
    found: dict[str, Update] = {}
    rows: list[_Row] = []
    for parameter, named in named_parameters(model).items():
        if is_lazy(parameter):
            continue
        was = before.get(parameter)
        copied = was is not None
        update = None if last is None else _compiled(parameter, was, last)
        if update is not None:
            found[named.name] = update
            continue
        if was is None:
            was = None if last is None else last.before(parameter)
        if was is not None:
            found[named.name] = Update()  # keeps the place
            rows.append(_row(named.name, parameter, was, last, copied=copied))
    of_state = {} if last is None else moments(last.optimizer, [row.parameter for row in rows])
    done = resolve(m for row in rows for m in (row.weight, row.moved))
    numbers = iter(_read([n for r in rows for n in (r.length, r.product, r.rest, r.spectral)]))
    for row in rows:
        sizes = _sizes(row, done, *islice(numbers, 4))
        decay = None if last is None else last.decay(row.parameter)
        own = of_state.get(row.parameter, Moments())
        found[row.name] = _figures(sizes, decay, own)
    return found


def _compiled(parameter: nn.Parameter, was: Tensor | None, last: LastStep) -> Update | None:
    """Return the figures from one read of weight, gradient and state; None if PyTorch must compute
    them."""
    if not on_host(parameter) or (parameter.dim() > 1 and _is_of_matrices(last.optimizer)):
        return None
    sums = last.sums(parameter, was)
    if sums is None:
        return None
    count, decay = parameter.numel(), last.decay(parameter)
    decoupled = decay is not None and decay.decoupled and bool(decay.decay)
    has_gradient = parameter.grad is not None
    sizes = _Sizes(
        numel=count,
        weight=math.sqrt(sums.was),
        change=math.sqrt(sums.moved),
        moved=None if was is None else sums.changed > 0,
        gradient=math.sqrt(sums.gradient) if has_gradient else None,
        product=sums.along if has_gradient else None,
        rest=math.sqrt(sums.rest) if decoupled else None,
    )
    first, second = last.moments(parameter)
    own = Moments(
        None if first is None else math.sqrt(sums.first),
        None if second is None else math.sqrt(sums.second_squares),
        None if second is None else spread_of(sums.second, sums.second_squares, count),
    )
    return _figures(sizes, decay, own)


def _row(
    name: str, parameter: nn.Parameter, was: Tensor, last: LastStep | None, *, copied: bool
) -> _Row:
    weight = local(parameter).detach()
    measured = measure(was)
    moved = was.sub_(weight)
    row = _Row(name, parameter, copied, measured, measure(moved))
    # For a weight that is spread over processes, this process's part gives no cosine.
    if last is None or not moved.is_floating_point() or is_spread(parameter):
        return row
    gradient = last.gradient(parameter)
    if gradient is not None:
        row.product = _product(moved, gradient)
        row.length = _product(gradient, gradient).sqrt()
    decay = last.decay(parameter)
    if decay is not None and decay.decoupled and decay.decay:
        taken = decay.rate * decay.decay
        row.rest = _rest(moved, weight, taken)
    if _is_of_matrices(last.optimizer) and moved.dim() > 1 and 0 < moved.numel() <= _LARGEST_MATRIX:
        matrix = moved.reshape(moved.shape[0], -1)
        row.spectral = torch.linalg.matrix_norm(wide(matrix), ord=2)
    return row


def _sizes(
    row: _Row,
    done: Mapping[int, TensorStats],
    gradient: float | None,
    product: float | None,
    rest: float | None,
    spectral: float | None,
) -> _Sizes:
    """Return a row's numbers after they were read back; none of them if Δw is unknown."""
    weight, change = done[id(row.weight)], done[id(row.moved)]
    if change.zeros is None or not change.numel:
        return _Sizes(change.numel)
    return _Sizes(
        numel=change.numel,
        weight=weight.norm,
        change=None if change.nan or change.inf else change.norm,
        moved=change.zeros < change.numel if row.copied else None,
        gradient=gradient,
        product=product,
        rest=rest,
        spectral=spectral,
    )


def _figures(sizes: _Sizes, decay: Decay | None, own: Moments) -> Update:
    norm, weight, gradient = sizes.change, sizes.weight, sizes.gradient
    product, largest = sizes.product, sizes.spectral
    if norm is None:
        return Update(
            weight=weight,
            moved=sizes.moved,
            m_norm=own.first,
            v_norm=own.second,
            v_spread=own.spread,
        )
    if gradient is not None and not 0 < gradient < math.inf:
        gradient = None
    cosine = None
    if product is not None and gradient is not None and norm and math.isfinite(product):
        cosine = max(-1.0, min(1.0, -product / (norm * gradient)))
    return Update(
        norm=norm,
        weight=weight,
        ratio=norm / weight if weight else None,
        moved=sizes.moved,
        rms=norm / math.sqrt(sizes.numel),
        effective_lr=None if gradient is None else norm / gradient,
        cosine=cosine,
        decay_share=_decay_share(decay, weight, gradient, sizes.rest),
        m_norm=own.first,
        v_norm=own.second,
        v_spread=own.spread,
        spectral_norm=largest,
        stable_rank=(norm / largest) ** 2 if largest else None,
    )


def _decay_share(
    decay: Decay | None, weight: float | None, gradient: float | None, rest: float | None
) -> float | None:
    """Return ‖decay‖ / (‖decay‖ + ‖rest‖) for the two terms that the optimizer adds up.

    Decoupled, these are the decay of the weight, ``lr·λ·w``, and the rest of Δw; otherwise λw and
    the gradient to which the optimizer adds it.
    """
    if decay is None:
        return None
    if not decay.decay:
        return 0.0
    if weight is None:
        return None
    own = decay.decay * weight * (decay.rate if decay.decoupled else 1.0)
    other = rest if decay.decoupled else gradient
    return own / (own + other) if other is not None and own + other > 0 else None


def _is_of_matrices(optimizer: Optimizer) -> bool:
    name = type(optimizer).__name__.lower()
    return any(word in name for word in _OF_MATRICES)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """Return the inner product in float64 of tensors of one shape."""
    return _over_blocks(torch.dot, a, b)


def _rest(moved: Tensor, weight: Tensor, taken: float) -> Tensor:
    """Return the norm of −Δw without the part of weight decay, in float64."""

    def squares(moved: Tensor, weight: Tensor) -> Tensor:
        rest = torch.add(moved * (1 - taken), weight, alpha=-taken)
        return torch.dot(rest, rest)

    return _over_blocks(squares, moved, weight).sqrt()


def _over_blocks(sum_of: Callable[[Tensor, Tensor], Tensor], a: Tensor, b: Tensor) -> Tensor:
    """Return a sum over the elements of two tensors of one shape, added up over blocks in float64.

    On the CPU, the blocks stay in the cache, and need no memory of the tensors' size.
    """
    a, b = flat(a), flat(b)
    if not on_host(a):
        return sum_of(a.double(), b.double())
    pairs = zip(torch.split(a, BLOCK), torch.split(b, BLOCK), strict=True)
    total = torch.stack([sum_of(one, other) for one, other in pairs]).double().sum()
    return sum_of(a.double(), b.double()) if bool(total.abs() < _TINY) else total


def _read(numbers: Sequence[Tensor | None]) -> list[float | None]:
    """Read numbers from devices, in one transfer from each."""
    found: list[float | None] = [None] * len(numbers)
    for device in {one.device for one in numbers if one is not None}:
        places = [i for i, one in enumerate(numbers) if one is not None and one.device == device]
        there = [one.double() for one in numbers if one is not None and one.device == device]
        for place, value in zip(places, torch.stack(there).tolist(), strict=True):
            found[place] = value
    return found
