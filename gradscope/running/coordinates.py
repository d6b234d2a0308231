"""Measures activations before each step of a run, and their difference from those before the first
step.

The activations of the first step are copied: the later ones are compared with them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import nn

from gradscope.capture.calls import ModuleCall, ModuleCalls
from gradscope.capture.hooks import hookable_modules
from gradscope.comparison.alignment import CallKey
from gradscope.nesting import find
from gradscope.running.step import Observer, Step


class Coordinates(NamedTuple):
    """The root mean square of an activation, and of its difference from the first step's.

    None: NaN or Inf, or of another shape than in the first step.
    """

    activation: float | None
    change: float | None


@dataclass(kw_only=True)
class CoordinateObserver(Observer):
    """Measures the first floating tensor that each call returns, in the forward of each step.

    A call that returns the tensor of a call inside it has no separate entry. The last step has no
    update.

    Attributes:
        names: the names of the modules to measure; the model's name is "".
        steps: the entries of each forward, in the order in which calls return.
        types: the class of each module with an entry.
        output: the call whose tensor is the model's output.
        optimizer: the class of the optimizer, after its first step.
    """

    names: Mapping[nn.Module, str]
    steps: list[dict[CallKey, Coordinates]] = field(default_factory=list)
    types: dict[CallKey, str] = field(default_factory=dict)
    output: CallKey = ("", 0)
    optimizer: str | None = None
    _first: dict[CallKey, torch.Tensor] = field(default_factory=dict, repr=False)

    @contextmanager
    def around_forward(self, step: Step) -> Iterator[None]:
        """Measure the results of calls in the block."""
        calls, found = ModuleCalls(self.names), {}
        seen: dict[tuple[int, int], tuple[CallKey, torch.Tensor]] = {}

        def after(call: ModuleCall, output: Any) -> None:
            tensor = _activation(output)
            if tensor is None:
                return
            key, version = (call.name, call.number), (id(tensor), tensor._version)
            if version in seen:
                key = seen[version][0]
            else:
                seen[version] = key, tensor
                found[key] = self._measured(key, tensor.detach())
                self.types[key] = type(call.module).__name__
            if not call.name:
                self.output = key

        modules = [one for one in hookable_modules(step.workload.model) if one in self.names]
        with calls.observed(modules, after=after):
            yield
        self.steps.append(found)

    def wants_update(self, step: Step) -> bool:
        """Return True if another forward follows."""
        if step.number + 1 == step.workload.steps:
            return False
        self.optimizer = type(step.optimizer).__name__
        return True

    @torch.no_grad()
    def _measured(self, key: CallKey, tensor: torch.Tensor) -> Coordinates:
        if not self.steps:
            self._first[key] = tensor.clone()
        first, change = self._first.get(key), None
        if first is not None and first.shape == tensor.shape:
            change = root_mean_square(tensor.double() - first.double())
        return Coordinates(root_mean_square(tensor), change)


def root_mean_square(tensor: torch.Tensor) -> float | None:
    """Return the root mean square in float64; None if an element is NaN or Inf."""
    norm = float(torch.linalg.vector_norm(tensor, dtype=torch.float64))
    return norm / math.sqrt(tensor.numel()) if math.isfinite(norm) else None


def _activation(output: Any) -> torch.Tensor | None:
    """Return the first real floating tensor with more than one element."""
    for _, tensor in find(output, torch.Tensor):
        if tensor.is_floating_point() and tensor.dim() and tensor.layout == torch.strided:
            return tensor if tensor.numel() else None
    return None
