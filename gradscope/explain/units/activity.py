"""Dead and saturated units: one run, traced operation by operation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from gradscope.capture.hooks import hooked, watchable
from gradscope.explain.shared.call_site import CallSite
from gradscope.explain.shared.module_calls import ModuleCalls
from gradscope.explain.shared.operations import Trait, by_operator
from gradscope.explain.shared.tracing_modes import OperatorTracer, TracedCall
from gradscope.explain.units.channels import Channels
from gradscope.explain.units.nonlinear import Flat, ends, softmax_ends
from gradscope.explain.units.reach import Reach
from gradscope.records.modules import UnitActivity


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
    """How the units after every nonlinearity in the model behave, in the order of forward.

    Functional, in-place and module nonlinearities are seen alike; so are the gates of a recurrent
    layer where PyTorch computes them one by one. What runs in a fused kernel is not: the gates of
    an LSTM or GRU in cuDNN or oneDNN, the softmax inside fused attention. What runs outside every
    module of the model, as a loss does, is not the model's.

    Rectifiers (relu, relu6, threshold, clamp at zero, hardswish) are off where they give zero and
    no slope. Of gelu, silu, mish and softplus that is where the slope is below ``slope``, and elu
    is flat there. A leaky relu is never dead. What one line of one call runs several times, as in a
    loop, is one record.

    Args:
        model: names the modules.
        forward: runs the model once. Where it raises, what was seen by then is given.
        active: a unit that is on (or not flat) in less than this share of its values is dead (or
            saturated). The default is that of SageMaker Debugger's DeadRelu.
        sigmoid: the inputs beyond which a sigmoid is flat.
        tanh: the magnitude of the input beyond which tanh is flat.
        softmax: a distribution whose largest probability is this near to 1 is saturated, unless
            only one entry is not masked.
        slope: the slope below which a smooth nonlinearity counts as flat.
    """
    tracer = _UnitTracer(model, Flat(sigmoid, tanh, softmax, slope))
    with hooked(watchable(model), tracer.calls.enter, tracer.calls.leave):
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
    """What is one record: one operation at one line of one call, in a loop or not."""

    op: str
    site: CallSite
    width: int  # units; of a softmax the entries of a distribution


@dataclass(slots=True)
class _Counts:
    """Units, the values of each, and how many of the values were off and flat, by unit.

    Of a softmax ``flat`` counts units.
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
        """Run the operator, and look at what it is given or gives."""
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
        """The innermost call, unless what runs is no part of the model."""
        site = self.calls.site()
        return None if site.module is None else site


def _counted(x: Any) -> bool:
    """Whether there are values to look at."""
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
    """Of all values of all units."""
    return int(counts if isinstance(counts, int) else counts.sum()) / (seen.units * seen.samples)


def _mostly(counts: torch.Tensor | int, samples: int, active: float) -> int:
    """How many units are so in all but a share below ``active`` of their values."""
    if isinstance(counts, int):
        return 0
    return int(((samples - counts) < active * samples).sum())
