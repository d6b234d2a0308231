"""Compares the calls inside a compiled model with a tape, by the probes it is compiled with."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn

from gradscope.capture.differences import Difference, difference
from gradscope.capture.hooks import watchable
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

#: The function of inductor's generated code that runs a graph, and a name in its module.
_CALL, _KERNELS = "call", "extern_kernels"


@dataclass(slots=True)
class Errors:
    """The differences of calls from a tape: of each output in the order of execution, and of each
    output gradient."""

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

    It runs free: the difference of a call includes those of the calls before it.

    Attributes:
        own: the differences from that tape.
        reference: those from the tape of a wider dtype; None without one.
        lines: the lines of generated code that handed a tensor on: file and number.
    """

    own: Errors
    reference: Errors | None = None
    lines: dict[tuple[ProbeKey, bool], tuple[str, int]] = field(default_factory=dict)
    _names: dict[nn.Module, str] = field(default_factory=dict)
    _counts: dict[tuple[str, str], int] = field(default_factory=dict)
    _waiting: dict[tuple[str, str], list[ProbeKey]] = field(default_factory=dict)

    @contextmanager
    def observing(self, model: nn.Module) -> Iterator[None]:
        """Probe the modules in the block. What was compiled before it has no probes."""
        names = module_names(model)
        self._names = {module: names[module] for module in watchable(model) if module in names}
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
        if what == INPUT or module is None:
            return
        place = self._names[module], path
        if what == GRADIENT:
            waiting = self._waiting.get(place)
            if not waiting:
                return
            key = waiting.pop()
        else:
            number = self._counts[place] = self._counts.get(place, -1) + 1
            key = ProbeKey(place[0], number, True, path)
            if what == DIFFERENTIABLE:
                self._waiting.setdefault(place, []).append(key)
        gradient, x = what == GRADIENT, x.detach()
        if self.reference is not None:
            self.reference.compare(key, x, gradient=gradient)
        if self.own.compare(key, x, gradient=gradient):
            line = _generated_line()
            if line is not None:
                self.lines[key, gradient] = line

    def kernel(self, key: ProbeKey, *, gradient: bool) -> str | None:
        """The line of generated code that computed a tensor: ``file:line``; None if unknown."""
        line = self.lines.get((key, gradient))
        return None if line is None else kernel_line(*line)


def _generated_line() -> tuple[str, int] | None:
    """The line of generated code that is running."""
    frame = sys._getframe(2)
    while frame is not None and (frame.f_code.co_name != _CALL or _KERNELS not in frame.f_globals):
        frame = frame.f_back  # type: ignore[assignment]
    return None if frame is None else (frame.f_code.co_filename, frame.f_lineno)


def kernel_line(file: str, number: int) -> str | None:
    """The last call before a line that was handed the buffer which the line hands to a probe."""
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()[:number]
    except (OSError, UnicodeDecodeError):
        return None
    given = (
        re.search(r"observe\.default\((?:reinterpret_tensor\()?(\w+)", lines[-1]) if lines else None
    )
    if given is None:
        return None
    kernel = re.compile(rf"(?:cpp_|triton_|extern_kernels\.|torch\.ops\.).*\b{given[1]}\b")
    for at in range(number - 2, -1, -1):
        if kernel.search(lines[at]) and "gradscope.observe" not in lines[at]:
            return f"{file}:{at + 1}"
    return None
