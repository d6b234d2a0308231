"""Compares the calls inside a compiled model with a tape, by the probes it is compiled with."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

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
        """Probe the modules in the block. Code that was compiled before has no probes."""
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
        """Return the line of generated code that computed a tensor: ``file:line``; None if
        unknown."""
        line = self.lines.get((key, gradient))
        return None if line is None else probed_kernel(*line)

    def parameter_kernel(self, name: str) -> str | None:
        """Return the line that computed a parameter's gradient: in the graph of its module's
        backward."""
        file, position = self.positions.get(name, (None, 0))
        for key, gradient in self.lines:
            # The backward of the graph that has the parameter: there may be several in a module.
            if gradient and key.name == name.rpartition(".")[0]:
                forward = self.lines.get((key, False))
                if forward is not None and forward[0] == file:
                    return gradient_kernel(*self.lines[key, True], position)
        return None


#: The function that runs a graph, and a name in its module.
_CALL, _KERNELS = "call", "extern_kernels"
_RUNS = re.compile(r"(?:cpp_|triton_|extern_kernels\.|torch\.ops\.)(?!gradscope)")
_INPUT = re.compile(r"primals_(\d+)")
_TENSOR = re.compile(r"(?:reinterpret_tensor\()?(\w+)")


def running_graph() -> FrameType | None:
    """Return the frame of the graph that calls a probe; None if its code was not generated."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (frame.f_code.co_name != _CALL or _KERNELS not in frame.f_globals):
        frame = frame.f_back
    return frame


def positions(graph: FrameType, parameters: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """Return the positions of parameters among a forward graph's inputs, from 0."""
    inputs = {
        value.data_ptr(): int(found[1]) - 1
        for name, value in graph.f_locals.items()
        if (found := _INPUT.fullmatch(name)) and isinstance(value, torch.Tensor)
    }
    found_at = {name: inputs.get(one.data_ptr()) for name, one in parameters.items()}
    return {name: at for name, at in found_at.items() if at is not None}


def probed_kernel(file: str, number: int) -> str | None:
    """Return the kernel that computed a probe's tensor, as ``file:line``; None if unknown.

    Args:
        file: the generated code.
        number: the line that calls the probe, from 1.
    """
    lines = _lines(file)[:number]
    _, _, handed = lines[-1].partition("observe.default(") if lines else ("", "", "")
    given = _TENSOR.match(handed)
    return None if given is None else _place(file, _kernel(lines[:-1], given[1]))


def gradient_kernel(file: str, number: int, position: int) -> str | None:
    """Return the kernel that computed the gradient of a graph's input, as ``file:line``; None if
    unknown.

    Args:
        file: the generated backward.
        number: a line in it, from 1.
        position: the position of the input.
    """
    lines = _lines(file)
    starts = (n for n in range(number, len(lines)) if lines[n].strip().startswith("return ("))
    end = next(starts, None)
    if end is None:
        return None
    results = _parts(lines[end].strip().removeprefix("return (").removesuffix(")"))
    if position >= len(results):
        return None
    given = _TENSOR.match(results[position].strip())
    return None if given is None else _place(file, _kernel(lines[:end], given[1]))


def _lines(file: str) -> list[str]:
    try:
        return Path(file).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []


def _place(file: str, at: int | None) -> str | None:
    return None if at is None else f"{file}:{at + 1}"


def _kernel(lines: Sequence[str], buffer: str) -> int | None:
    """Return the first kernel that gets a buffer after its allocation: that one writes it."""
    named, found = re.compile(rf"\b{buffer}\b"), None
    for at in range(len(lines) - 1, -1, -1):
        line = lines[at].strip()
        if not named.search(line):
            continue
        if _RUNS.search(line):
            found = at
        if line.startswith(f"{buffer} = "):
            source = _TENSOR.match(line.partition(" = ")[2])
            if found is None and source is not None:  # another name of a buffer, or a part of it
                return _kernel(lines[:at], source[1])
            return found
    return None  # an input of the graph


def _parts(text: str) -> list[str]:
    """Split at the commas outside of brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return parts
