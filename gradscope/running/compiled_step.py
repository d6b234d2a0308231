"""Compares the calls inside a compiled model with a tape, by the probes it is compiled with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import nn

from gradscope.capture.calls import in_backward
from gradscope.capture.differences import Difference, difference
from gradscope.capture.hooks import hookable_modules
from gradscope.capture.names import module_names
from gradscope.capture.traced_probes import (
    COMPILED,
    DIFFERENTIABLE,
    GRADIENT,
    INPUT,
    Probe,
    add_probe,
    listen,
)
from gradscope.running.generated_code import (
    gradient_kernel,
    positions,
    probed_kernel,
    running_graph,
)
from gradscope.running.probed_step import ProbeKey, Tape


@dataclass(slots=True)
class Errors:
    """The differences of calls from a tape: of each input and output in the order of execution, and
    of each output gradient."""

    tape: Tape
    values: dict[ProbeKey, Difference] = field(default_factory=dict)
    gradients: dict[ProbeKey, Difference] = field(default_factory=dict)

    def compare(self, key: ProbeKey, x: torch.Tensor, *, gradient: bool) -> bool:
        """Compare a tensor with its counterpart; return whether there is one."""
        if gradient:
            several = self.tape.gradients.get(key)
            known = several[-1] if several else None
        else:
            known = self.tape.values.get(key)
        if known is None or known.shape != x.shape:
            return False
        (self.gradients if gradient else self.values)[key] = difference(known, x)
        return True


@dataclass(slots=True)
class CompiledComparison:
    """A compiled model's calls against the tape of an eager one.

    Both models use their own activations, so the difference of a call includes the differences of
    earlier calls.

    Attributes:
        own: the differences from the eager tape.
        reference: the differences from the tape of a wider dtype; None without such a tape.
        lines: the lines of generated code that passed a tensor on: file and number.
        positions: for each parameter, the forward graph's file and the parameter's input number.
    """

    own: Errors
    reference: Errors | None = None
    lines: dict[tuple[ProbeKey, bool], tuple[str, int]] = field(default_factory=dict)
    positions: dict[str, tuple[str, int]] = field(default_factory=dict)
    _names: dict[nn.Module, str] = field(default_factory=dict)
    _counts: dict[tuple[str, str, bool], int] = field(default_factory=dict)
    _waiting: dict[tuple[str, str], list[ProbeKey]] = field(default_factory=dict)

    @contextmanager
    def observing(self, model: nn.Module) -> Iterator[None]:
        """Probe the modules in the block. What was compiled before it has no probes."""
        names = module_names(model)
        self._names = {
            module: names[module] for module in hookable_modules(model) if module in names
        }
        probes = [add_probe(module, self._see) for module in self._names]
        listen(self, on=True)
        try:
            yield
        finally:
            listen(self, on=False)
            for probe in probes:
                probe.remove()

    def _see(self, probe: Probe, x: torch.Tensor, path: str, kind: int) -> None:
        what, module = kind % COMPILED, probe.module()
        gradient = what == GRADIENT
        if module is None or (not gradient and in_backward()):  # a checkpoint computes it again
            return
        name = self._names[module]
        if gradient:
            waiting = self._waiting.get((name, path))
            if not waiting:
                return
            key = waiting.pop()
        else:
            place = name, path, what != INPUT
            number = self._counts[place] = self._counts.get(place, -1) + 1
            key = ProbeKey(name, number, what != INPUT, path)
            if what == DIFFERENTIABLE:
                self._waiting.setdefault((name, path), []).append(key)
        x = x.detach()
        if self.reference is not None:
            self.reference.compare(key, x, gradient=gradient)
        graph = running_graph()
        if self.own.compare(key, x, gradient=gradient) and graph is not None:
            self.lines[key, gradient] = (graph.f_code.co_filename, graph.f_lineno)
        if what == INPUT and graph is not None:
            own = {
                ".".join(filter(None, (name, one))): parameter
                for one, parameter in module.named_parameters(recurse=False)
            }
            file = graph.f_code.co_filename
            for one, position in (positions(graph, own) if own else {}).items():
                self.positions[one] = file, position

    def kernel(self, key: ProbeKey, *, gradient: bool) -> str | None:
        """The line of generated code that computed a tensor: ``file:line``; None if unknown."""
        line = self.lines.get((key, gradient))
        return None if line is None else probed_kernel(*line)

    def parameter_kernel(self, name: str) -> str | None:
        """The line that computed a parameter's gradient: in the graph of its module's backward."""
        file, position = self.positions.get(name, (None, 0))
        for key, gradient in self.lines:
            # The backward of the graph that has the parameter: there may be several in a module.
            if gradient and key.name == name.rpartition(".")[0]:
                forward = self.lines.get((key, False))
                if forward is not None and forward[0] == file:
                    return gradient_kernel(*self.lines[key, True], position)
        return None
