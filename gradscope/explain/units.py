"""Measures dead and saturated units in one run, traced operation by operation."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from gradscope.capture.hooks import hookable_modules
from gradscope.explain.shared.frames import CallSite
from gradscope.explain.shared.operations import Operation, Trait, by_operator
from gradscope.explain.shared.tracing_modes import (
    ModuleCalls,
    OperatorTracer,
    TracedCall,
    memory_of,
    tensors_in,
)
from gradscope.records.modules import UnitActivity

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
    """Masks of the elements that are ``off``, ``flat`` or ``near`` to flat; None for none."""

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


class Channels:
    """Follows shapes through a run; ``axis`` returns the axis of the units for a tensor."""

    def __init__(self) -> None:
        self._axes: dict[tuple[int, ...], int] = {}

    def saw(self, operation: Operation, given: Any, result: Any) -> None:
        """Note that ``operation`` made ``result``, or a tuple that begins with it, from
        ``given``."""
        made = result[0] if isinstance(result, tuple | list) and result else result
        if not isinstance(made, torch.Tensor) or made.dim() < 2:
            return
        if operation.has(Trait.CHANNELS):
            self._axes[tuple(made.shape)] = 1
        elif operation.has(Trait.FEATURES):
            self._axes[tuple(made.shape)] = made.dim() - 1
        elif operation.has(Trait.RESHAPES) and isinstance(given, torch.Tensor) and given.dim() > 1:
            before = self._axes.get(tuple(given.shape))
            if before == given.dim() - 1 and given.shape[-1] == made.shape[-1]:
                self._axes[tuple(made.shape)] = made.dim() - 1

    def axis(self, tensor: torch.Tensor) -> int:
        """Return the axis of the units; if unknown, it is the second axis for pictures, else the
        last."""
        known = self._axes.get(tuple(tensor.shape))
        if known is not None:
            return known
        return 1 if tensor.dim() in (4, 5) else tensor.dim() - 1


#: Number of rows that suffices alone.
_FEW = 16


class Reach:
    """Follows the outputs of linear layers with few rows; ``highest`` gives their upper bounds.

    With weights w and bias b, an input with entries between l and h and a norm of at most n gives
    at most b + min(h·Σw⁺ + l·Σw⁻, n·‖w‖).
    """

    def __init__(self) -> None:
        self._bounds: dict[int, torch.Tensor] = {}  # by the memory of what the layer gave

    def saw(self, operation: Operation, args: tuple[Any, ...], result: Any) -> None:
        """Note a linear layer's ``result``; drop results that are overwritten.

        A view has the same memory and the same numbers.
        """
        if operation.has(Trait.RESHAPES):
            return
        for made in tensors_in(result):
            self._bounds.pop(memory_of(made), None)
        if operation.name in ("mm", "addmm") and 0 < len(result) < _FEW:
            bias, x, weight = args if operation.name == "addmm" else (None, *args)
            if x.is_floating_point() and weight.numel():
                self._bounds[memory_of(result)] = _highest(bias, x.float(), weight.float())

    def highest(self, tensor: torch.Tensor, axis: int) -> torch.Tensor | None:
        """Return an upper bound for each unit on ``axis``; None if the tensor is not a linear
        layer's result."""
        bound = self._bounds.get(memory_of(tensor))
        fits = bound is not None and axis == tensor.dim() - 1 and len(bound) == tensor.shape[-1]
        return bound if fits else None


@torch.no_grad()
def _highest(bias: torch.Tensor | None, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    low, high = x.aminmax()
    within = high * weight.clamp(min=0).sum(0) + low * weight.clamp(max=0).sum(0)
    bound = torch.minimum(within, x.norm(dim=1).max() * weight.norm(dim=0))
    return bound if bias is None else bound + bias


def unit_activity(
    model: nn.Module,
    forward: Callable[[], Any],
    *,
    active: float = 0.01,
    sigmoid: tuple[float, float] = (-23.0, 16.99999),
    tanh: float = 9.4999,
    softmax: float = 4e-8,
    slope: float = 1e-6,
) -> tuple[UnitActivity, ...]:
    """Measure the units after every nonlinearity in the model, in the order of forward.

    It measures functional, in-place and module nonlinearities, and the gates of a recurrent layer
    if PyTorch computes them one by one. It cannot see inside fused kernels: the gates of an LSTM or
    GRU in cuDNN or oneDNN, the softmax in fused attention. Operations outside of the model's
    modules, such as the loss, do not count.

    Rectifiers (relu, relu6, threshold, clamp at zero, hardswish) are off if result and slope are
    zero. gelu, silu, mish and softplus are off if the slope is below ``slope``; elu is then flat. A
    leaky relu is never dead. If one line of a call runs several times, as in a loop, it is one
    record.

    Args:
        model: names the modules.
        forward: runs the model once. If it raises, the records so far are returned.
        active: a unit is dead (or saturated) if it is on (or not flat) in less than this share
            of its values. The default is that of SageMaker Debugger's DeadRelu.
        sigmoid: a sigmoid is flat at inputs beyond these.
        tanh: tanh is flat at inputs of a larger magnitude.
        softmax: a distribution is saturated if its largest probability is this near to 1,
            unless only one entry is visible.
        slope: a smooth nonlinearity counts as flat below this slope.
    """
    tracer = _UnitTracer(model, Flat(sigmoid, tanh, softmax, slope))
    with tracer.calls.observed(hookable_modules(model)):
        _run(forward, tracer)
    return tuple(_record(key, seen, active) for key, seen in tracer.seen.items())


def _run(forward: Callable[[], Any], tracer: _UnitTracer) -> None:
    try:
        with OperatorTracer(tracer.run):
            forward()
    except Exception:
        # The run that the user asked for has raised it already, and explained it.
        return


@dataclass(frozen=True, slots=True)
class _Key:
    """Key of one record: one operation at one line of one call, in a loop or not."""

    op: str
    site: CallSite
    width: int  # units; of a softmax the entries of a distribution


@dataclass(slots=True)
class _Counts:
    """The number of units, of values per unit, and of off and flat values by unit.

    For a softmax, ``flat`` counts units.
    """

    units: int
    samples: int
    off: torch.Tensor | int = 0
    flat: torch.Tensor | int = 0
    near: torch.Tensor | None = None  # how many values of all units
    asleep: torch.Tensor | None = None  # units that no input like these wakes


class _UnitTracer:
    def __init__(self, model: nn.Module, flat: Flat) -> None:
        self.calls = ModuleCalls(model, _run.__code__)
        self.seen: dict[_Key, _Counts] = {}
        self._flat = flat
        self._channels, self._reach = Channels(), Reach()

    def run(self, call: TracedCall) -> Any:
        """Run the operator, and measure its input or output."""
        function: Any = call.function
        operation = by_operator(function._schema.name.removeprefix("aten::"))
        x: Any = call.args[0] if call.args else None
        counted = _counted(x)
        softmax = operation.has(Trait.SOFTMAX) and not operation.has(Trait.LOGITS)
        if counted and not softmax:
            self._look(operation.name, x, call.args[1:], call.kwargs)  # before it is overwritten
        result = call.run()
        if counted and softmax:
            self._look_at_softmax(x, result, call.args[1])
        self._channels.saw(operation, x, result)
        self._reach.saw(operation, call.args, result)
        return result

    @torch.no_grad()
    def _look(self, op: str, x: torch.Tensor, args: tuple[Any, ...], kwargs: Any) -> None:
        found = ends(op, x, args, kwargs, self._flat)
        if found is None or x.dim() == 0 or (site := self._place()) is None:
            return
        axis = self._channels.axis(x)
        units = x.shape[axis]
        seen = self.seen.setdefault(_Key(found.op, site, units), _Counts(units, 0))
        seen.samples += x.numel() // units
        others = [i for i in range(x.dim()) if i != axis]
        if found.off is not None:
            seen.off = seen.off + (found.off.sum(others) if others else found.off.long())
            highest = self._reach.highest(x, axis)
            reached = None if highest is None else ends(op, highest, args, kwargs, self._flat)
            below = reached.off if reached is not None else None
            asleep = torch.zeros_like(seen.off, dtype=torch.bool) if below is None else below
            seen.asleep = asleep if seen.asleep is None else seen.asleep & asleep
        if found.flat is not None:
            seen.flat = seen.flat + (found.flat.sum(others) if others else found.flat.long())
        if found.near is not None:
            seen.near = found.near.sum() + (0 if seen.near is None else seen.near)

    @torch.no_grad()
    def _look_at_softmax(self, x: torch.Tensor, result: torch.Tensor, dim: int) -> None:
        if x.dim() == 0 or (site := self._place()) is None:
            return
        units, saturated = softmax_ends(x, result, dim, self._flat)
        width = x.shape[dim]
        seen = self.seen.setdefault(_Key("softmax", site, width), _Counts(0, width))
        seen.units += units
        seen.flat = seen.flat + saturated

    def _place(self) -> CallSite | None:
        """Return the innermost call, unless the code is no part of the model."""
        site = self.calls.site()
        return None if site.module is None else site


def _counted(x: Any) -> bool:
    """Return True if the tensor has values to measure: floating, strided, not empty, not meta."""
    if not isinstance(x, torch.Tensor) or not x.is_floating_point() or not x.numel():
        return False
    return x.device.type != "meta" and x.layout == torch.strided


def _record(key: _Key, seen: _Counts, active: float) -> UnitActivity:
    if key.op == "softmax":
        dead, saturated = 0, int(seen.flat)
    else:
        dead, saturated = (_mostly(n, seen.samples, active) for n in (seen.off, seen.flat))
    softmax, near = key.op == "softmax", seen.near
    return UnitActivity(
        key.op,
        key.site.module,
        key.site.call,
        seen.units,
        seen.samples,
        dead,
        saturated,
        key.site.location,
        near=None if near is None else int(near) / (seen.units * seen.samples),
        off=None if softmax else _share(seen.off, seen),
        flat=None if softmax else _share(seen.flat, seen),
        asleep=0 if seen.asleep is None else int(seen.asleep.sum()),
    )


def _share(counts: torch.Tensor | int, seen: _Counts) -> float:
    """Return the count as a share of all values of all units."""
    return int(counts if isinstance(counts, int) else counts.sum()) / (seen.units * seen.samples)


def _mostly(counts: torch.Tensor | int, samples: int, active: float) -> int:
    """Return the number of units that are counted in all of their values, except a share below
    ``active``."""
    if isinstance(counts, int):
        return 0
    return int(((samples - counts) < active * samples).sum())
