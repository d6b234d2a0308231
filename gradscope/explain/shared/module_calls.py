"""Which module's call is this: the calls of a run, those that have not returned, and their nodes.

A call that a checkpoint runs again inside backward is the call that it repeats.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

from torch import nn
from torch.autograd.graph import Node

from gradscope.capture.calls import sequence_number
from gradscope.capture.graph import Span, owners
from gradscope.capture.names import named_modules
from gradscope.capture.recompute import in_backward
from gradscope.explain.shared.call_site import CallSite
from gradscope.explain.shared.frames import nearest


@dataclass(slots=True)
class ModuleCall:
    """One execution of a module's forward: the nodes from ``start`` up to ``end`` are its own."""

    module: nn.Module
    name: str
    number: int
    recomputed: bool
    parent: int
    start: int
    end: int | None = None


class ModuleCalls:
    """Module calls, in their order; ``enter`` and ``leave`` are for ``hooked``.

    Args:
        model: names the modules.
        last: the code of the function that starts the run: the frames around it are not the user's.
        line: file and line of what is in no frame of the user's.
    """

    def __init__(
        self, model: nn.Module, last: CodeType, line: tuple[str, int] | None = None
    ) -> None:
        self.last = last
        self._line = line or (None, None)
        self.called: set[nn.Module] = set()
        self._names = {module: named.name for module, named in named_modules(model).items()}
        self._counts: dict[nn.Module, int] = {}
        self._calls: list[ModuleCall] = []
        self._open: list[int] = []

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A module's forward begins."""
        number = self._counts.get(module, 0)
        recomputed = in_backward()
        if recomputed:
            number = max(0, number - 1)
        else:
            self._counts[module] = number + 1
        self.called.add(module)
        self._drop_recomputed()
        name, parent = self._names.get(module, ""), self._open[-1] if self._open else -1
        self._open.append(len(self._calls))
        self._calls.append(ModuleCall(module, name, number, recomputed, parent, sequence_number()))

    def leave(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        """A module's forward returned; those inside it that raised are left too."""
        if self.innermost(module) is None:
            return
        while True:
            call = self._calls[self._open.pop()]
            call.end = sequence_number()
            if call.module is module:
                return

    def innermost(self, module: nn.Module | None = None) -> ModuleCall | None:
        """The innermost call that runs, of any module or of this one."""
        self._drop_recomputed()
        for index in reversed(self._open):
            if module is None or self._calls[index].module is module:
                return self._calls[index]
        return None

    def _drop_recomputed(self) -> None:
        """After backward no recomputed call runs: a checkpoint leaves it once it has enough."""
        while self._open and self._calls[self._open[-1]].recomputed and not in_backward():
            self._open.pop()

    def site(self, frame: FrameType | None = None) -> CallSite:
        """The innermost module call and the user's line nearest to ``frame``, else to now."""
        call = self.innermost()
        name, number = (None, None) if call is None else (call.name, call.number)
        user = nearest(frame or sys._getframe(1), self.last)
        if user is None:
            return CallSite(name, number, *self._line)
        return CallSite(name, number, user.f_code.co_filename, user.f_lineno)

    def makers(self, nodes: Sequence[Node]) -> list[ModuleCall | None]:
        """The innermost call that made each node."""
        now = sequence_number()
        spans = [
            Span(call.start, now if call.end is None else call.end, call.parent)
            for call in self._calls
        ]
        return [self._calls[i] if i >= 0 else None for i in owners(nodes, spans)]
