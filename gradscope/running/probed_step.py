"""Runs a step with probes between its calls; a tape records every tensor that passes."""

from __future__ import annotations

import weakref
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import nn

from gradscope.capture.names import named_modules
from gradscope.capture.probes import Probe, ProbeKey, ProbePoints
from gradscope.comparison.alignment import CallKey
from gradscope.loading.workload import Workload
from gradscope.running.plain_calls import Gradients, LossRecorder, gradients_of
from gradscope.running.rerun import rerun


class Copies:
    """Tensors that were passed on: one that comes again untouched need not be compared again."""

    def __init__(self) -> None:
        self._given: dict[int, tuple[weakref.ref[torch.Tensor], int, torch.Tensor]] = {}

    def enter(self, tensor: torch.Tensor, original: torch.Tensor) -> torch.Tensor:
        """``tensor``, which is given on in the place of the ``original``."""
        self._given[id(tensor)] = (weakref.ref(tensor), tensor._version, original)
        return tensor

    def original(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """What was entered with the tensor, where nobody wrote to it since."""
        given, version, original = self._given.get(id(tensor), (None, 0, None))
        known = given is not None and given() is tensor and tensor._version == version
        return original if known else None


class StepProbe(Probe, Protocol):
    """Who observes a full step.

    Attributes:
        noise: before it, each number of the weights is moved by this share of itself, up or down.
        draw: the number of the step among several such steps.
        arrived: gradients of the parameters.
    """

    noise: float
    draw: int
    arrived: Gradients

    def end(self, loss: torch.Tensor, parameters: Gradients) -> None:
        """The step is done."""


@dataclass
class Tape:
    """Every tensor that the probes of a step saw, in order, and its loss and parameter gradients.

    Attributes:
        values: what calls took and returned, as it was then.
        gradients: of the same; several where there were several backwards.
        arrived: gradients of the parameters.
        loss: what backward started from.
    """

    values: dict[ProbeKey, torch.Tensor] = field(default_factory=dict)
    gradients: dict[ProbeKey, list[torch.Tensor]] = field(default_factory=dict)
    arrived: Gradients = field(default_factory=dict)
    loss: torch.Tensor = field(default_factory=lambda: torch.zeros(()))
    noise: float = 0.0
    draw: int = 0
    _copies: Copies = field(default_factory=Copies)

    def forward(self, key: ProbeKey, tensor: torch.Tensor) -> torch.Tensor:
        """Keep the tensor."""
        known = self._copies.original(tensor)
        self.values[key] = value = tensor.detach().clone() if known is None else known
        return self._copies.enter(tensor.detach().clone(), value)

    def backward(self, key: ProbeKey, gradient: torch.Tensor) -> torch.Tensor:
        """Keep the gradient; held, it is written to by nobody."""
        self.gradients.setdefault(key, []).append(gradient.detach())
        return gradient

    def end(self, loss: torch.Tensor, parameters: Gradients) -> None:
        """Keep what the step left."""
        self.loss, self.arrived = loss, parameters


def moved(tensor: torch.Tensor, share: float, *, seed: int) -> torch.Tensor:
    """Each number up or down by that share of itself, as a coin says."""
    if not share or not (tensor.is_floating_point() or tensor.is_complex()):
        return tensor
    # Its own generator: the step's own random numbers stay what they were.
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
    """Run a step with probes; then everything is as it was.

    Args:
        workload: what runs.
        probe: what is reported.
        unprobed: calls whose arguments are left alone.
        number: of the step.
    """
    model = workload.model
    names = {module: named.name for module, named in named_modules(model).items()}
    probe_points = ProbePoints(names, probe, unprobed)
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
