"""Side effects of a model's forward, learned on its first calls: random numbers that it draws,
and buffers, attributes and arguments that it writes to."""

from __future__ import annotations

import pickle
import random
import weakref
from collections.abc import Callable, Sequence

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from gradscope.capture.measurements import version
from gradscope.capture.remembered import TensorPlace, buffer_places, parameter_places
from gradscope.capture.shards import local
from gradscope.loading.random_states import (
    gpu_states,
    numpy_state,
    python_state,
    torch_state,
)
from gradscope.running.state import same_bits

PutBack = Callable[[], None]

#: The calls that are compared with the state before; until then the snapshot has everything.
LEARNED = 3


class SideEffects:
    """State saved at the entry of a model's call, in one of the model's modes.

    If a model has a new side effect after its first calls, a replay does not restore it, and may
    compute other numbers. The script is not affected.

    Attributes:
        trained: a parameter; its version shows that an optimizer has updated the weights.
        module: a weak reference to the model. All references here are weak, because a script may
            build a new model in each step.
        learning: True while calls are compared.
        keeps: True if some state must be saved.
        writes_arguments: True if forward writes to its input.
        writes_parameters: True if forward writes to its own parameters.
        draws: True if it draws PyTorch's random numbers on the CPU.
        line: the line that calls it, if there is only one.
        training: the mode of the model; True is train mode.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module, self.training = weakref.ref(module), module.training
        self._modules = [weakref.ref(m) for m in module.modules()]
        self._stateful = list(self._modules)
        self._buffers = list(buffer_places(module))
        self._parameters = list(parameter_places(module))
        trained = (p for p in self._parameters if (one := p()) is not None and one.requires_grad)
        self.trained: Callable[[], torch.Tensor | None] = next(trained, lambda: None)
        self._devices = list({p.device for p in module.parameters() if p.device.type == "cuda"})
        self._mixed = True
        self._python, self._numpy = True, True
        self.draws = True
        self._calls = 0
        self._entry: _Entry | None = None
        self._seen: set[object] = set()
        self._lines: set[tuple[str, int] | None] = set()
        self.learning = self.keeps = True
        self.writes_arguments = True
        self.writes_parameters = False
        self.line: tuple[str, int] | None = None

    def snapshot(self) -> list[PutBack]:
        """Return functions that restore the state around the call that begins now, part by part."""
        if self.learning:
            self._entry = _Entry(self._stateful, self._buffers, self._parameters)
        kept: list[PutBack] = []
        if self._mixed:
            kept.append(Modes(self._modules))
        if self.draws:
            kept.append(torch_state())
        if self._devices:
            kept += gpu_states(self._devices)
        if self._python:
            kept.append(python_state())
        if self._numpy and (drawn := numpy_state()) is not None:
            kept.append(drawn)
        if self._stateful:
            kept.append(_attributes(self._stateful))
        if self._buffers:
            kept.append(BufferValues(self._buffers))
        return kept

    def learn(self, written: bool, line: tuple[str, int] | None) -> None:
        """Learn from a call that has ended; ``written`` is True if it changed its arguments."""
        entry, self._entry = self._entry, None
        if entry is None:
            return
        self._calls += 1
        self._seen |= entry.changed()
        self._lines.add(line)
        if written:
            self._seen.add("arguments")
        self.writes_parameters = "parameters" in self._seen
        if self._calls == LEARNED:
            self._narrow()

    def _narrow(self) -> None:
        """Reduce the snapshot to the state that changed in the first calls."""
        self.learning = False
        self._python, self._numpy = "python" in self._seen, "numpy" in self._seen
        self.draws = "torch" in self._seen
        self._stateful = [m for m in self._stateful if m in self._seen]
        self._buffers = [b for b in self._buffers if b in self._seen]
        self._parameters = []
        self.writes_arguments = "arguments" in self._seen
        modes = {module.training for ref in self._modules if (module := ref()) is not None}
        self._mixed = len(modes) > 1
        kept = (self._python, self._numpy, self.draws, self._stateful, self._buffers, self._mixed)
        self.keeps = any(map(bool, (*kept, self._devices, self.writes_arguments)))
        self.line = self._lines.pop() if len(self._lines) == 1 else None


class _Entry:
    """The surroundings of one call, for a comparison after it."""

    def __init__(
        self,
        modules: list[weakref.ref[nn.Module]],
        buffers: list[TensorPlace],
        parameters: list[TensorPlace],
    ) -> None:
        self._python, self._numpy = random.getstate(), _numpy_state()
        self._torch = torch.default_generator.get_state()
        self._modules = [(m, _held(m())) for m in modules]
        self._buffers = [(b, _copy(b())) for b in buffers]
        self._parameters = [(p, _version(p())) for p in parameters]

    def changed(self) -> set[object]:
        """Return the parts of the state that changed."""
        found: set[object] = set()
        if random.getstate() != self._python:
            found.add("python")
        if _numpy_state() != self._numpy:
            found.add("numpy")
        if not torch.equal(torch.default_generator.get_state(), self._torch):
            found.add("torch")
        found.update(m for m, held in self._modules if _held(m()) != held)
        found.update(b for b, copy in self._buffers if not _same(b(), copy))
        # A lazy module's parameter had no version before its first call.
        if any(before not in (-1, _version(p())) for p, before in self._parameters):
            found.add("parameters")
        return found


class Modes:
    """The modes of a model's modules, if they differ; a call restores them.

    Attributes:
        held: each module with its mode.
    """

    def __init__(self, modules: Sequence[weakref.ref[nn.Module]]) -> None:
        self.held = {m: m.training for ref in modules if (m := ref()) is not None}

    def __call__(self) -> None:
        for module, training in self.held.items():
            if module.training != training:
                module.training = training


def _numpy_state() -> bytes:
    """Return NumPy's random state in a form that can be compared: it holds an array."""
    return pickle.dumps(numpy_state())


def _attributes(modules: Sequence[weakref.ref[nn.Module]]) -> PutBack:
    held = [(m, dict(m.__dict__), dict(m._buffers)) for ref in modules if (m := ref()) is not None]
    held = [(m, attributes, buffers) for m, attributes, buffers in held if not _scripted(m)]

    def put_back() -> None:
        for module, attributes, buffers in held:
            for name in [name for name in module.__dict__ if name not in attributes]:
                del module.__dict__[name]
            module.__dict__.update(attributes)
            module._buffers.update(buffers)

    return put_back


def _scripted(module: nn.Module) -> bool:
    return isinstance(module, torch.jit.ScriptModule)


class BufferValues:
    """Copies of buffers; a call restores them.

    Attributes:
        copies: each buffer with its copy.
    """

    def __init__(self, buffers: Sequence[TensorPlace]) -> None:
        found = [(place(), _copy(place())) for place in buffers]
        self.copies = [(b, copy) for b, copy in found if b is not None and copy is not None]

    def __call__(self) -> None:
        with torch.no_grad():
            for buffer, copy in self.copies:
                if local(buffer).shape == copy.shape:
                    local(buffer).copy_(copy)


def _held(module: nn.Module | None) -> list[tuple[str, int]]:
    """Return the objects that a module holds, by name; objects in a container have the container's
    name.
    """
    if module is None or _scripted(module):
        return []
    names = [(name, id(value)) for name, value in module.__dict__.items() if name != "training"]
    return names + [(name, id(value)) for name, value in module._buffers.items()]


def _copy(buffer: torch.Tensor | None) -> torch.Tensor | None:
    if buffer is None or is_lazy(buffer) or buffer.is_meta:
        return None
    return local(buffer).detach().clone()


def _same(buffer: torch.Tensor | None, copy: torch.Tensor | None) -> bool:
    if buffer is None or copy is None:
        return True
    buffer = local(buffer)
    return buffer.shape == copy.shape and same_bits(buffer, copy)


def _version(tensor: torch.Tensor | None) -> int:
    return -1 if tensor is None or is_lazy(tensor) else version(tensor)
