"""Probes on the tensors between calls: each can be read, and replaced by another one.

A probe is at every tensor that a call takes or returns, in forward and at its gradient in backward.
It returns the tensor that flows on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import torch
from torch import nn

from gradscope.capture.hooks import change_calls
from gradscope.capture.recompute import in_backward
from gradscope.nesting import find, replaced

#: Tensors of other classes (wrapped, nested, distributed) may not be what they seem: no probe.
_PLAIN = (torch.Tensor, nn.Parameter)


class ProbeKey(NamedTuple):
    """The tensor at ``path`` in the arguments (``output`` false) or the result of a call."""

    name: str
    call: int
    output: bool
    path: str


class Probe(Protocol):
    """Gets every tensor at a probe point, and returns the one that flows on instead."""

    def forward(self, key: ProbeKey, tensor: torch.Tensor) -> torch.Tensor:
        """Its own tensor, of the same shape and dtype."""

    def backward(self, key: ProbeKey, gradient: torch.Tensor) -> torch.Tensor:
        """Of the same shape and dtype."""


class ProbePoints:
    """The probes of one step.

    Args:
        names: of the modules whose calls have probe_points.
        probe: what is reported.
        unprobed: calls whose arguments get none, by name and number.
    """

    def __init__(
        self,
        names: Mapping[nn.Module, str],
        probe: Probe,
        unprobed: Collection[tuple[str, int]] = (),
    ) -> None:
        #: Until backward starts: a gradient that is taken inside forward is not the run's.
        self.armed = False
        self._names = names
        self._probe = probe
        self._unprobed = unprobed
        self._counts: Counter[str] = Counter()
        self._running: list[tuple[nn.Module, int]] = []

    def arm(self) -> None:
        """Backward starts."""
        self.armed = True

    @contextmanager
    def installed(self) -> Iterator[None]:
        """ProbePoints are there until the block ends."""
        handles = []
        try:
            for module in self._names:
                if not isinstance(module, torch.jit.ScriptModule):
                    handles += change_calls(module, self._before, self._after)
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if module not in self._names or in_backward():
            return None
        name = self._names[module]
        number = self._counts[name]
        self._counts[name] += 1
        self._running.append((module, number))
        if (name, number) in self._unprobed:
            return None
        # Positional arguments and keywords in one nesting: a tensor in both stays one.
        return self._tapped((args, kwargs), name, number, output=False)

    def _after(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> Any:
        if module not in self._names or in_backward():
            return None
        while self._running:
            begun, number = self._running.pop()  # one that is not this module's has raised
            if begun is module:
                return self._tapped(output, self._names[module], number, output=True)
        return None

    def _tapped(self, tree: Any, name: str, number: int, *, output: bool) -> Any:
        done: dict[int, torch.Tensor] = {}
        for path, tensor in find(tree, torch.Tensor):
            plain = type(tensor) in _PLAIN and tensor.layout == torch.strided
            if id(tensor) not in done:
                where = path if output else path.partition(".")[2]
                key = ProbeKey(name, number, output, where)
                done[id(tensor)] = self._add_probe(key, tensor) if plain else tensor
        return replaced(tree, torch.Tensor, lambda tensor: done.get(id(tensor), tensor))

    def _add_probe(self, key: ProbeKey, tensor: torch.Tensor) -> torch.Tensor:
        if not (tensor.requires_grad and torch.is_grad_enabled()):
            return self._probe.forward(key, tensor.detach())
        probed: torch.Tensor = _ProbePoint.apply(tensor, self, key)
        return probed


class _ProbePoint(torch.autograd.Function):
    """What the probe gives, forward and backward."""

    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, probe_points: ProbePoints, key: ProbeKey
    ) -> torch.Tensor:
        ctx.probe_points, ctx.key = probe_points, key
        return probe_points._probe.forward(key, tensor)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        probe_points: ProbePoints = ctx.probe_points
        if not probe_points.armed:
            return gradient, None, None
        with torch.no_grad():
            return probe_points._probe.backward(ctx.key, gradient), None, None
