"""Runs a step with probes on the tensors between its calls; a tape records every one that passes.

A probe is at every tensor that a call takes or returns, in forward and at its gradient in backward.
It returns the tensor that flows on.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import nn

from gradscope.capture.calls import ModuleCall, ModuleCalls
from gradscope.capture.names import module_names
from gradscope.capture.shards import PLAIN
from gradscope.comparison.alignment import CallKey
from gradscope.loading.workload import Workload
from gradscope.nesting import find, replaced
from gradscope.running.rerun import Gradients, LossRecorder, gradients_of, rerun

#: Tensors of other classes (wrapped, nested, distributed) may not be what they seem: no probe.


class ProbeKey(NamedTuple):
    """The tensor at ``path`` in the arguments (``output`` false) or the result of a call."""

    name: str
    call: int
    output: bool
    path: str


@dataclass(kw_only=True)
class StepProbe:
    """Gets every tensor at the probe points of a step, and returns the tensor that flows on in its
    place.

    Attributes:
        noise: the share by which each number of the weights is moved before the step, up or down.
        draw: the number of the step among several such steps.
        arrived: the gradients of the parameters.
        loss: the root of backward.
    """

    noise: float = 0.0
    draw: int = 0
    arrived: Gradients = field(default_factory=dict)
    loss: torch.Tensor = field(default_factory=lambda: torch.zeros((), device="cpu"))

    def value(self, key: ProbeKey, tensor: torch.Tensor) -> torch.Tensor:
        """Return a new tensor of the same shape and dtype."""
        return tensor.detach().clone()

    def gradient(self, key: ProbeKey, gradient: torch.Tensor) -> torch.Tensor:
        """Return a gradient of the same shape and dtype."""
        return gradient

    def end(self, loss: torch.Tensor, parameters: Gradients) -> None:
        """Keep the step's results."""
        self.loss, self.arrived = loss, parameters


class ProbePoints:
    """The probes of one step.

    Args:
        names: the names of the modules whose calls have probe points.
        probe: gets each tensor.
        unprobed: calls whose arguments get no probes, by name and number.
    """

    def __init__(
        self,
        names: Mapping[nn.Module, str],
        probe: StepProbe,
        unprobed: Collection[tuple[str, int]] = (),
    ) -> None:
        #: False until backward starts: a gradient computed inside forward is not one of the run.
        self.armed = False
        self._names = names
        self._probe = probe
        self._unprobed = unprobed

    def arm(self) -> None:
        """Note the start of backward."""
        self.armed = True

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Install the probe points until the block ends."""
        with ModuleCalls(self._names).observed(self._names, self._before, self._after):
            yield

    def _before(self, call: ModuleCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if (call.name, call.number) in self._unprobed:
            return None
        # Positional arguments and keywords in one nesting: a tensor in both stays one.
        return self._tapped((args, kwargs), call, output=False)

    def _after(self, call: ModuleCall, output: Any) -> Any:
        return self._tapped(output, call, output=True)

    def _tapped(self, tree: Any, call: ModuleCall, *, output: bool) -> Any:
        done: dict[int, torch.Tensor] = {}
        for path, tensor in find(tree, torch.Tensor):
            plain = type(tensor) in PLAIN and tensor.layout == torch.strided
            if id(tensor) not in done:
                where = path if output else path.partition(".")[2]
                key = ProbeKey(call.name, call.number, output, where)
                done[id(tensor)] = self._add_probe(key, tensor) if plain else tensor
        return replaced(tree, torch.Tensor, lambda tensor: done.get(id(tensor), tensor))

    def _add_probe(self, key: ProbeKey, tensor: torch.Tensor) -> torch.Tensor:
        if not (tensor.requires_grad and torch.is_grad_enabled()):
            return self._probe.value(key, tensor.detach())
        probed: torch.Tensor = _ProbePoint.apply(tensor, self, key)
        return probed


class _ProbePoint(torch.autograd.Function):
    """Function that applies the probe, forward and backward."""

    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, probe_points: ProbePoints, key: ProbeKey
    ) -> torch.Tensor:
        ctx.probe_points, ctx.key = probe_points, key
        return probe_points._probe.value(key, tensor)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        probe_points: ProbePoints = ctx.probe_points
        if not probe_points.armed:
            return gradient, None, None
        with torch.no_grad():
            return probe_points._probe.gradient(ctx.key, gradient), None, None


class Copies:
    """Remembers tensors that were passed on, so that an unchanged one is not compared again."""

    def __init__(self) -> None:
        self._given: dict[int, tuple[weakref.ref[torch.Tensor], int, torch.Tensor]] = {}

    def enter(self, tensor: torch.Tensor, original: torch.Tensor) -> torch.Tensor:
        """Note that ``tensor`` is passed on in place of ``original``."""
        self._given[id(tensor)] = (weakref.ref(tensor), tensor._version, original)
        return tensor

    def original(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return the tensor's original; None if the tensor was written to since."""
        given, version, original = self._given.get(id(tensor), (None, 0, None))
        known = given is not None and given() is tensor and tensor._version == version
        return original if known else None


@dataclass(kw_only=True)
class Tape(StepProbe):
    """Every tensor that the probes of a step saw, in order, and its loss and parameter gradients.

    Attributes:
        values: the inputs and results of calls, as they were then.
        gradients: their gradients; several after several backwards.
    """

    values: dict[ProbeKey, torch.Tensor] = field(default_factory=dict)
    gradients: dict[ProbeKey, list[torch.Tensor]] = field(default_factory=dict)
    _copies: Copies = field(default_factory=Copies)

    def value(self, key: ProbeKey, tensor: torch.Tensor) -> torch.Tensor:
        """Keep the tensor."""
        known = self._copies.original(tensor)
        self.values[key] = value = tensor.detach().clone() if known is None else known
        return self._copies.enter(tensor.detach().clone(), value)

    def gradient(self, key: ProbeKey, gradient: torch.Tensor) -> torch.Tensor:
        """Keep the gradient; a held tensor is not written to."""
        self.gradients.setdefault(key, []).append(gradient.detach())
        return gradient


def moved(tensor: torch.Tensor, share: float, *, seed: int) -> torch.Tensor:
    """Return the tensor with each number moved up or down at random by that share of itself."""
    if not share or not (tensor.is_floating_point() or tensor.is_complex()):
        return tensor
    # A separate generator: the step's random numbers stay as they are.
    coins = torch.Generator(tensor.device).manual_seed(seed)
    up = torch.empty(tensor.shape, dtype=torch.bool, device=tensor.device)
    up.bernoulli_(generator=coins)
    return torch.where(up, tensor * (1 + share), tensor * (1 - share))


def probed_step(
    workload: Workload,
    probe: StepProbe,
    unprobed: Collection[CallKey] = (),
    number: int = 0,
) -> None:
    """Run a step with probes; restores all state.

    Args:
        workload: the workload to run.
        probe: gets each tensor.
        unprobed: calls whose arguments get no probes.
        number: the number of the step.
    """
    model = workload.model
    probe_points = ProbePoints(module_names(model), probe, unprobed)
    observer = LossRecorder(arm=probe_points.arm)
    with rerun(workload, number, observer=observer, weights=True) as step:
        if probe.noise:
            _move(model, probe)
        with probe_points.installed():
            step.compute_gradients()
        probe.end(observer.loss, gradients_of(model))


@torch.no_grad()
def _move(model: nn.Module, probe: StepProbe) -> None:
    for number, parameter in enumerate(model.parameters(), start=1):
        seed = (probe.draw << 32) + (number << 48)
        parameter.copy_(moved(parameter, probe.noise, seed=seed))
