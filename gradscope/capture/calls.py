"""Calls while they are being collected, and the stack of those that have not returned."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
from torch import nn

from gradscope.capture.frontier import ObservedTensor
from gradscope.nesting import find
from gradscope.patterns import Named


def call_tensors(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a call: positional arguments by number, keyword arguments by name."""
    yield from find(args, torch.Tensor)
    yield from find(kwargs, torch.Tensor)


def sequence_number() -> int:
    """The number that the next autograd node of this thread gets."""
    return torch._C._autograd._get_sequence_nr()


@dataclass(slots=True)
class Call:
    """One execution of one module's forward, until it is finished as a record."""

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

    A call is reported by the frame that runs its hooks, not by its module: a module may call
    itself, and a call may have raised and its error been caught, so that it will never return.
    """

    def __init__(self) -> None:
        self._threads: dict[int, list[tuple[FrameType, Call]]] = {}

    def enter(self, frame: FrameType, call: Call) -> None:
        """``call`` begins in ``frame``; what it is nested in is ``innermost`` of the same frame."""
        self._own().append((frame, call))

    def innermost(self, frame: FrameType) -> Call | None:
        """The call that ``frame`` runs inside of; those that were abandoned are closed."""
        stack = self._own()
        while stack and not _runs_inside(frame, stack[-1][0]):
            _close(stack.pop()[1])
        return stack[-1][1] if stack else None

    def leave(self, frame: FrameType) -> Call | None:
        """The call that began in ``frame`` returns; None where none did."""
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
        """Close whatever still runs, and let go of its frames; outermost first."""
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
