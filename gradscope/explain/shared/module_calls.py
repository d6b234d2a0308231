"""Where the second run is: the module calls that have not returned, and the user's line."""

from __future__ import annotations

import sys
from types import CodeType, FrameType
from typing import Any

from torch import nn

from gradscope.capture.hooks import named_modules
from gradscope.explain.shared.frames import nearest
from gradscope.explain.shared.places import Place


class Executing:
    """Module calls under way; ``enter`` and ``leave`` are for ``hooked``.

    Args:
        model: names the modules.
        last: the code of the function that starts the run: the frames around it are not the user's.
    """

    def __init__(self, model: nn.Module, last: CodeType) -> None:
        self.called: set[nn.Module] = set()
        self.last = last
        self._names = {module: named.name for module, named in named_modules(model).items()}
        self._counts: dict[nn.Module, int] = {}
        self._stack: list[tuple[nn.Module, int]] = []

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A module's forward begins."""
        number = self._counts.get(module, 0)
        self._counts[module] = number + 1
        self.called.add(module)
        self._stack.append((module, number))

    def leave(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        """A module's forward returned; those inside it that raised are left too."""
        if any(entered is module for entered, _ in self._stack):
            while self._stack.pop()[0] is not module:
                pass

    @property
    def under_way(self) -> bool:
        """Whether a module's forward is running."""
        return bool(self._stack)

    def name_of(self, module: nn.Module) -> str:
        """A module's first name."""
        return self._names[module]

    def module(self) -> nn.Module | None:
        """The innermost module that runs, now."""
        return self._stack[-1][0] if self._stack else None

    def place(self, frame: FrameType | None = None) -> Place:
        """The innermost module call and the user's line nearest to ``frame``, else to now."""
        module, call = self._stack[-1] if self._stack else (None, None)
        file, line = nearest(frame or sys._getframe(1), self.last) or (None, None)
        return Place(None if module is None else self._names[module], call, file, line)
