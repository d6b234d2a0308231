"""Calls of modules: which of them run, their numbers and nodes, and their records so far."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
from torch import nn

from gradscope.capture.frontier import ObservedTensor
from gradscope.nesting import find
from gradscope.patterns import Named

#: Cheap check, made at each call, for autocast on any kind of device.
any_autocast = torch._C._is_any_autocast_enabled


def autocast_dtypes() -> list[tuple[str, torch.dtype]]:
    """Return the device types with autocast on, and the dtype of each."""
    return [
        (device, torch.get_autocast_dtype(device))
        for device in ("cpu", "cuda")
        if torch.is_autocast_enabled(device)
    ]


def autocast_name(module: nn.Module) -> str | None:
    """Return autocast's dtype for the device of the module's parameters, such as ``bfloat16``; None
    if it is off."""
    first = next(module.parameters(), None)
    wanted = "cpu" if first is None else first.device.type
    for device, dtype in autocast_dtypes():
        if device == wanted:
            return str(dtype).removeprefix("torch.")
    return None


def call_tensors(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of a call: positional arguments by number, keyword arguments by name."""
    yield from find(args, torch.Tensor)
    yield from find(kwargs, torch.Tensor)


def sequence_number() -> int:
    """Return the sequence number of this thread's next autograd node."""
    return torch._C._autograd._get_sequence_nr()


def in_backward() -> bool:
    """Return True if this thread runs a backward; a forward is then a recomputation."""
    return torch._C._current_graph_task_id() != -1


@dataclass(slots=True, eq=False)
class ModuleCall:
    """One execution of a module's forward, with the autograd nodes from ``start`` up to ``end``."""

    module: nn.Module
    name: str
    number: int
    recomputed: bool
    parent: int
    start: int
    end: int | None = None


class ModuleCalls:
    """The calls of some modules in order, running calls included.

    A recomputation by a checkpoint counts as the call that it repeats. A recorder uses
    ``CallStack`` instead, because its modules may call themselves or run in several threads.

    Args:
        names: of the modules.
    """

    def __init__(self, names: Mapping[nn.Module, str]) -> None:
        self._names = names
        self._counts: Counter[nn.Module] = Counter()
        self._calls: list[ModuleCall] = []
        self._open: list[int] = []

    def begin(self, module: nn.Module) -> ModuleCall:
        """Note that a module's forward begins."""
        recomputed = in_backward()
        number = self._counts[module]
        if recomputed:
            number = max(0, number - 1)
        else:
            self._counts[module] += 1
        self._drop_recomputed()
        name, parent = self._names.get(module, ""), self._open[-1] if self._open else -1
        self._open.append(len(self._calls))
        self._calls.append(ModuleCall(module, name, number, recomputed, parent, sequence_number()))
        return self._calls[-1]

    def end(self, module: nn.Module) -> ModuleCall | None:
        """Return the call of a module that has returned; also end calls inside it that raised."""
        if self.innermost(module) is None:
            return None
        while True:
            call = self._calls[self._open.pop()]
            call.end = sequence_number()
            if call.module is module:
                return call

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Forward pre-hook: calls ``begin``."""
        self.begin(module)

    def leave(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        """Forward hook: calls ``end``."""
        self.end(module)

    def innermost(self, module: nn.Module | None = None) -> ModuleCall | None:
        """Return the innermost running call, of any module or of this one."""
        self._drop_recomputed()
        for index in reversed(self._open):
            if module is None or self._calls[index].module is module:
                return self._calls[index]
        return None

    def _drop_recomputed(self) -> None:
        """Drop recomputed calls after backward; a checkpoint may stop them early."""
        while self._open and self._calls[self._open[-1]].recomputed and not in_backward():
            self._open.pop()


@dataclass(slots=True)
class Call:
    """One execution of one module's forward, until its record is complete."""

    index: int
    module: nn.Module
    named: Named
    number: int
    parent: int
    start: int
    selected: bool
    training: bool
    end: int | None = None  # None while it runs
    returned: bool = False
    notes: list[str] = field(default_factory=list)
    inputs: list[ObservedTensor] = field(default_factory=list)
    outputs: list[ObservedTensor] = field(default_factory=list)
    arguments: list[tuple[torch.Tensor, int]] = field(default_factory=list)  # while it runs
    saved_bytes: int | None = None

    def note(self, text: str) -> None:
        """Remember a note, once."""
        if text not in self.notes:
            self.notes.append(text)


class CallStack:
    """The calls that are running, in each thread.

    The Python frame that runs a call's hooks identifies the call, because a module may call itself.
    A call may also never return, because its error was caught.
    """

    def __init__(self) -> None:
        self._threads: dict[int, list[tuple[FrameType, Call]]] = {}

    def enter(self, frame: FrameType, call: Call) -> None:
        """Note that ``call`` begins in ``frame``; ``innermost`` of the same frame is the call
        around it.
        """
        self._own().append((frame, call))

    def innermost(self, frame: FrameType) -> Call | None:
        """Return the call around ``frame``; close abandoned calls."""
        stack = self._own()
        while stack and not _runs_inside(frame, stack[-1][0]):
            _close(stack.pop()[1])
        return stack[-1][1] if stack else None

    def leave(self, frame: FrameType) -> Call | None:
        """Return the call that began in ``frame``, which returns now; None without one."""
        stack = self._own()
        if not any(begun is frame for begun, _ in reversed(stack)):
            return None
        while stack[-1][0] is not frame:
            _close(stack.pop()[1])
        call = stack.pop()[1]
        _close(call)
        call.returned = True
        return call

    def abandon(self) -> list[Call]:
        """Close all running calls, outermost first, and release their frames."""
        left = [call for stack in self._threads.values() for _, call in stack]
        for call in left:
            _close(call)
        self._threads.clear()
        return left

    def _own(self) -> list[tuple[FrameType, Call]]:
        return self._threads.setdefault(threading.get_ident(), [])


def _runs_inside(frame: FrameType | None, outer: FrameType) -> bool:
    while frame is not None and frame is not outer:
        frame = frame.f_back
    return frame is outer


def _close(call: Call) -> None:
    if call.end is None:
        call.end = sequence_number()
