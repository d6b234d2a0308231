"""Finds the elements at which a nonlinearity is off (zero and flat) or flat."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

#: Entries of a softmax's input from here down are masked, whatever the mask's constant.
_MASKED = -9000.0


@dataclass(frozen=True, slots=True)
class Flat:
    """Limits from which nonlinearities count as flat, mostly for the input.

    Those of sigmoid and tanh are from SageMaker Debugger's rule SaturatedActivation: beyond them
    the slope is 0 in float32.
    """

    sigmoid: tuple[float, float] = (-23.0, 16.99999)
    tanh: float = 9.4999
    softmax: float = 4e-8  # what the largest probability of a distribution lacks to 1
    slope: float = 1e-6  # of gelu, silu, softplus, elu and their like
    near: float = math.atanh(0.97)  # of tanh: nearly flat, a slope of 6 %; twice that of sigmoid


@dataclass(slots=True)
class FlatRanges:
    """Masks of the elements that are ``off``, ``flat`` or ``near`` to flat; None without any."""

    op: str
    off: torch.Tensor | None = None
    flat: torch.Tensor | None = None
    near: torch.Tensor | None = None


Rule = Callable[[torch.Tensor, tuple[Any, ...], dict[str, Any], Flat], FlatRanges | None]


def ends(
    op: str, x: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any], flat: Flat
) -> FlatRanges | None:
    """Return the masks of a nonlinearity ``op`` on its input; None if it is not a nonlinearity.

    Args:
        op: the operation by ATen's name, without underscores around it.
        x: its input.
        args, kwargs: its other arguments.
        flat: the limits.
    """
    rule = _RULES.get(op)
    return None if rule is None else rule(x, args, kwargs, flat)


def softmax_ends(
    x: torch.Tensor, result: torch.Tensor, dim: int, flat: Flat
) -> tuple[int, torch.Tensor]:
    """Return the number of distributions, and the number of those with all mass in one entry.

    A distribution with a single visible entry does not count as flat.
    """
    choice = (x > _MASKED).sum(dim) > 1
    one = result.amax(dim).double() >= 1 - flat.softmax
    return choice.numel(), (one & choice).sum()


def _given(args: tuple[Any, ...], kwargs: dict[str, Any], i: int, name: str, default: Any) -> Any:
    return args[i] if len(args) > i else kwargs.get(name, default)


def _between(op: str, x: torch.Tensor, low: float, high: float) -> FlatRanges:
    """Return the ranges of a clamp: off at a lower bound of zero, flat at any other bound."""
    if low == 0:
        return FlatRanges(op, off=x <= 0, flat=x >= high)
    return FlatRanges(op, flat=(x <= low) | (x >= high))


def _hardtanh(x: torch.Tensor, args: Any, kwargs: Any, flat: Flat) -> FlatRanges:
    low = float(_given(args, kwargs, 0, "min_val", -1.0))
    high = float(_given(args, kwargs, 1, "max_val", 1.0))
    return _between("relu6" if (low, high) == (0.0, 6.0) else "hardtanh", x, low, high)


def _threshold(x: torch.Tensor, args: Any, kwargs: Any, flat: Flat) -> FlatRanges:
    below = x <= _given(args, kwargs, 0, "threshold", 0.0)
    value = _given(args, kwargs, 1, "value", 0.0)
    return FlatRanges("threshold", off=below) if value == 0 else FlatRanges("threshold", flat=below)


def _clamp(x: torch.Tensor, args: Any, kwargs: Any, flat: Flat) -> FlatRanges | None:
    """Return the ranges of ``clamp``: a rectifier if the lower bound is zero, a hard tanh with two
    bounds; else None, because it only guards a range."""
    low, high = _given(args, kwargs, 0, "min", None), _given(args, kwargs, 1, "max", None)
    if not x.requires_grad or isinstance(low, torch.Tensor) or isinstance(high, torch.Tensor):
        return None
    if low == 0 and high is None:
        return FlatRanges("clamp", off=x <= 0)
    if low is None or high is None:
        return None
    return _between("clamp", x, float(low), float(high))


def _clamp_min(x: torch.Tensor, args: Any, kwargs: Any, flat: Flat) -> FlatRanges | None:
    return _clamp(x, (_given(args, kwargs, 0, "min", None),), {}, flat)


def _leaky(x: torch.Tensor, args: Any, kwargs: Any, flat: Flat) -> FlatRanges:
    slope = _given(args, kwargs, 0, "negative_slope", 0.01)
    return FlatRanges("leaky_relu", off=x <= 0) if slope == 0 else FlatRanges("leaky_relu")


def _sigmoid(x: torch.Tensor, args: Any, kwargs: Any, flat: Flat) -> FlatRanges:
    low, high = flat.sigmoid
    return FlatRanges("sigmoid", flat=(x < low) | (x > high), near=x.abs() > 2 * flat.near)


def _elu(x: torch.Tensor, args: Any, kwargs: Any, flat: Flat) -> FlatRanges:
    alpha = float(_given(args, kwargs, 0, "alpha", 1.0))
    scale = float(_given(args, kwargs, 1, "scale", 1.0))
    inner = float(_given(args, kwargs, 2, "input_scale", 1.0))
    steepest = abs(alpha * scale * inner)
    if inner <= 0:
        return FlatRanges("elu")
    flat_from = math.log(flat.slope / steepest) / inner if steepest > flat.slope else 0.0
    return FlatRanges("elu", flat=x < flat_from)


def _celu(x: torch.Tensor, args: Any, kwargs: Any, flat: Flat) -> FlatRanges:
    alpha = float(_given(args, kwargs, 0, "alpha", 1.0))
    return (
        FlatRanges("celu", flat=x < math.log(flat.slope) * alpha)
        if alpha > 0
        else FlatRanges("celu")
    )


def _softplus(x: torch.Tensor, args: Any, kwargs: Any, flat: Flat) -> FlatRanges:
    beta = float(_given(args, kwargs, 0, "beta", 1.0))
    return FlatRanges("softplus", off=x * beta < _logit(flat.slope))


def _logit(p: float) -> float:
    return math.log(p) - math.log1p(-p)


def _gelu_slope(x: float) -> float:
    density = math.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    return math.erfc(-x / math.sqrt(2)) / 2 + x * density


def _silu_slope(x: float) -> float:
    s = 1 / (1 + math.exp(-x))
    return s * (1 + x * (1 - s))


def _mish_slope(x: float) -> float:
    t = math.tanh(math.log1p(math.exp(x)))
    return t + x * (1 - t * t) / (1 + math.exp(-x))


@functools.cache
def _edge(slope: Callable[[float], float], small: float) -> float:
    """Return the input below which a slope is smaller than ``small``; below -4, all three slopes
    shrink."""
    low, high = -100.0, -4.0
    if abs(slope(high)) < small:
        return high
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if abs(slope(middle)) < small else (low, middle)
    return low


_RULES: dict[str, Rule] = {
    "relu": lambda x, args, kwargs, flat: FlatRanges("relu", off=x <= 0),
    "hardtanh": _hardtanh,
    "threshold": _threshold,
    "clamp": _clamp,
    "clamp_min": _clamp_min,
    "leaky_relu": _leaky,
    "prelu_kernel": lambda x, args, kwargs, flat: FlatRanges("prelu"),
    "hardswish": lambda x, args, kwargs, flat: FlatRanges("hardswish", off=x <= -3),
    "hardsigmoid": lambda x, args, kwargs, flat: FlatRanges("hardsigmoid", flat=x.abs() >= 3),
    "sigmoid": _sigmoid,
    "tanh": lambda x, args, kwargs, flat: FlatRanges(
        "tanh", flat=x.abs() > flat.tanh, near=x.abs() > flat.near
    ),
    "elu": _elu,
    "celu": _celu,
    "softplus": _softplus,
    "log_sigmoid": lambda x, args, kwargs, flat: FlatRanges(
        "log_sigmoid", off=x > -_logit(flat.slope)
    ),
    "gelu": lambda x, args, kwargs, flat: FlatRanges(
        "gelu", off=x < _edge(_gelu_slope, flat.slope)
    ),
    "silu": lambda x, args, kwargs, flat: FlatRanges(
        "silu", off=x < _edge(_silu_slope, flat.slope)
    ),
    "mish": lambda x, args, kwargs, flat: FlatRanges(
        "mish", off=x < _edge(_mish_slope, flat.slope)
    ),
}
