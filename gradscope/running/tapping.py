"""A step with taps between its calls: recorded on a tape, and another held against the tape.

In a step that is *forced* every call gets what the recorded one's had, forward and backward: by
how much its result is off then is its own doing, and nothing of what came before it.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import nn

from gradscope.capture.differences import Difference, difference
from gradscope.capture.hooks import named_modules
from gradscope.capture.taps import Listener, TapKey, Taps
from gradscope.comparison.alignment import CallKey
from gradscope.loading import Workload
from gradscope.running.plain_calls import Gradients, LossKept, gradients_of
from gradscope.running.rerun import rerun


class _Copies:
    """Tensors that were given on: what comes by again untouched need not be looked at again."""

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


class StepListener(Listener, Protocol):
    """Who listens to a whole step.

    Attributes:
        noise: before it, each number of the weights is moved by this share of itself, up or down.
        draw: tells several such steps apart.
        arrived: gradients of the parameters.
    """

    noise: float
    draw: int
    arrived: Gradients

    def end(self, loss: torch.Tensor, parameters: Gradients) -> None:
        """The step is done."""


@dataclass
class Tape:
    """Everything that came by the taps of a step, in its order, and what was left at its end.

    Attributes:
        values: what calls took and returned, as it was then.
        gradients: of the same; several where there were several backwards.
        arrived: gradients of the parameters.
        loss: what backward started from.
    """

    values: dict[TapKey, torch.Tensor] = field(default_factory=dict)
    gradients: dict[TapKey, list[torch.Tensor]] = field(default_factory=dict)
    arrived: Gradients = field(default_factory=dict)
    loss: torch.Tensor = field(default_factory=lambda: torch.zeros(()))
    noise: float = 0.0
    draw: int = 0
    _copies: _Copies = field(default_factory=_Copies)

    def forward(self, key: TapKey, tensor: torch.Tensor) -> torch.Tensor:
        """Keep the tensor."""
        known = self._copies.original(tensor)
        self.values[key] = value = tensor.detach().clone() if known is None else known
        return self._copies.enter(tensor.detach().clone(), value)

    def backward(self, key: TapKey, gradient: torch.Tensor) -> torch.Tensor:
        """Keep the gradient; held, it is written to by nobody."""
        self.gradients.setdefault(key, []).append(gradient.detach())
        return gradient

    def end(self, loss: torch.Tensor, parameters: Gradients) -> None:
        """Keep what the step left."""
        self.loss, self.arrived = loss, parameters


@dataclass(kw_only=True)
class Comparison:
    """A step held against a tape: how far everything is off, by the tape's names.

    Attributes:
        tape: what it is held against.
        forced: put what is on the tape in the place of what comes by.
        noise: each number that is given on is moved by this share of itself, up or down, and
            ``draw`` tells several such steps apart.
        named: the tape's name of a tensor that comes by; None where it has none.
        parameter: the same of a parameter.
        missing: keys whose gradient is on the tape and did not come.
        arrived: gradients of the parameters, by the step's own names.
    """

    tape: Tape
    forced: bool = False
    noise: float = 0.0
    draw: int = 0
    named: Callable[[TapKey], TapKey | None] = lambda key: key
    parameter: Callable[[str], str | None] = lambda name: name
    values: dict[TapKey, Difference] = field(default_factory=dict)
    gradients: dict[TapKey, Difference] = field(default_factory=dict)
    parameters: dict[str, Difference | None] = field(default_factory=dict)
    shapes: dict[TapKey, tuple[int, ...]] = field(default_factory=dict)
    loss: torch.Tensor = field(default_factory=lambda: torch.zeros(()))
    missing: set[TapKey] = field(default_factory=set)
    arrived: Gradients = field(default_factory=dict)
    _copies: _Copies = field(default_factory=_Copies)
    _backwards: dict[TapKey, int] = field(default_factory=dict)
    _moved: int = 0

    def forward(self, key: TapKey, tensor: torch.Tensor) -> torch.Tensor:
        """Hold the tensor against the tape's; give that one on where the step is forced."""
        known = self.named(key)
        on_tape = None if known is None else self.tape.values.get(known)
        if known is None or on_tape is None:
            return tensor.detach().clone()
        if on_tape.shape != tensor.shape:
            self.shapes[known] = tuple(tensor.shape)
            return tensor.detach().clone()
        self.values[known] = self._difference(on_tape, tensor)
        return self._put(on_tape if self.forced else tensor.detach(), tensor)

    def backward(self, key: TapKey, gradient: torch.Tensor) -> torch.Tensor:
        """The same of its gradient; of several the one that is farthest off counts."""
        known = self.named(key)
        on_tape = [] if known is None else self.tape.gradients.get(known, [])
        number = self._backwards.get(key, 0)
        self._backwards[key] = number + 1
        if known is None or number >= len(on_tape) or on_tape[number].shape != gradient.shape:
            return gradient
        found = self._difference(on_tape[number], gradient)
        before = self.gradients.get(known)
        if before is None or before.error < found.error:
            self.gradients[known] = found
        if not (self.forced or self.noise):
            return gradient
        return self._put(on_tape[number] if self.forced else gradient, gradient)

    def end(self, loss: torch.Tensor, parameters: Gradients) -> None:
        """Hold what the step left against what the tape's left."""
        self.loss, self.arrived = loss, parameters
        self.missing = self.tape.gradients.keys() - self.gradients.keys()
        for name, gradient in parameters.items():
            known = self.parameter(name)
            if known is not None and known in self.tape.arrived:
                self.parameters[known] = _of_parameters(self.tape.arrived[known], gradient)

    def _difference(self, on_tape: torch.Tensor, tensor: torch.Tensor) -> Difference:
        if self._copies.original(tensor) is on_tape:
            return Difference(0.0, None, 0.0)
        return difference(on_tape, tensor)

    def _put(self, original: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
        """A copy of the original in the dtype, device and layout of the tensor that it replaces."""
        self._moved += 1
        put = torch.empty_like(tensor, requires_grad=False)
        put.copy_(moved(original, self.noise, seed=(self.draw << 32) + self._moved))
        return self._copies.enter(put, original) if self.forced and not self.noise else put


def _of_parameters(one: torch.Tensor | None, other: torch.Tensor | None) -> Difference | None:
    """None where neither has a gradient; one that the other lacks is infinitely far off."""
    if one is None and other is None:
        return None
    if one is None or other is None or one.shape != other.shape:
        return Difference(math.inf, None, math.inf)
    return difference(*(t.to_dense() if t.layout != torch.strided else t for t in (one, other)))


def moved(tensor: torch.Tensor, share: float, *, seed: int) -> torch.Tensor:
    """Each number up or down by that share of itself, as a coin says."""
    if not share or not (tensor.is_floating_point() or tensor.is_complex()):
        return tensor
    # A generator of its own: the step's own random numbers stay what they were.
    coins = torch.Generator(tensor.device).manual_seed(seed)
    up = torch.empty(tensor.shape, dtype=torch.bool, device=tensor.device)
    up.bernoulli_(generator=coins)
    return torch.where(up, tensor * (1 + share), tensor * (1 - share))


def tapped_step(
    workload: Workload,
    listener: StepListener,
    untapped: Collection[CallKey] = (),
    number: int = 0,
) -> None:
    """Run a step with taps; then everything is as it was.

    Args:
        workload: what runs.
        listener: what is told.
        untapped: calls whose arguments are left alone.
        number: of the step.
    """
    model = workload.model
    names = {module: named.name for module, named in named_modules(model).items()}
    taps = Taps(names, listener, untapped)
    observer = LossKept(arm=taps.arm)
    with rerun(workload, number, observer=observer, weights=True) as step:
        if listener.noise:
            _move(model, listener)
        with taps.installed():
            step.compute_gradients()
        listener.end(observer.loss, gradients_of(model))


@torch.no_grad()
def _move(model: nn.Module, listener: StepListener) -> None:
    for number, parameter in enumerate(model.parameters(), start=1):
        seed = (listener.draw << 32) + (number << 48)
        parameter.copy_(moved(parameter, listener.noise, seed=seed))
