"""The function that the user called, as written in the source."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gradscope.explain.shared.operations import function_name, written
from gradscope.explain.shared.tracing_modes import TracedCall

#: Many operations of the engine's, none of them written by the user.
_ENGINE = ("backward", "grad", "_set_grad_enabled")


class CurrentFunction:
    """The outermost of PyTorch's functions under way: ``softmax`` for all that it is made of."""

    def __init__(self) -> None:
        self.name: str | None = None
        self.serial = 0  # of the latest call
        self.asleep = False  # while something of ours computes

    def run(self, call: TracedCall) -> Any:
        """Run a function under its name."""
        if self.asleep:
            return call.run()
        name = function_name(call.function)
        with self.named(None if name in _ENGINE else written(name)):
            return call.run()

    @contextmanager
    def named(self, name: str | None) -> Iterator[None]:
        """What runs inside is a call of this function."""
        self.serial += 1
        self.name = name
        try:
            yield
        finally:
            self.name = None
