"""The table of programs that raise: a program builds the model, its input and its loss.

Lines that an explanation must point to bear a comment: ``# here`` is the error's location,
``# saved``, ``# mutated``, ``# freed`` and ``# carried`` are related places of that role. With
``mended`` the same program has its smallest fix and runs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

ROLES = ("saved", "mutated", "freed", "carried")


@dataclass(frozen=True)
class Program:
    """Arguments of ``gradscope.inspect``."""

    model: nn.Module
    inputs: Any
    target: Any = None
    loss: Any = "sum"
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Broken:
    """A program with what its explanation must say.

    ``module`` is the error's name, None outside every module. Each of ``facts`` must be in what is
    reported beside PyTorch's own message.
    """

    build: Callable[[bool], Program]
    kind: str
    module: str | None
    facts: tuple[str, ...]

    def marked(self) -> dict[str, str]:
        """``file:line`` of each marked line, as a user in the current directory would write it."""
        lines, first = inspect.getsourcelines(self.build)
        file = Path(inspect.getsourcefile(self.build) or "")
        shown = file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file
        found: dict[str, str] = {}
        for i, text in enumerate(lines):
            _, _, comment = text.rstrip().rpartition("  # ")
            for role in comment.split(", "):
                if role in ("here", *ROLES):
                    assert role not in found, f"{self.build.__name__}: two lines marked {role}"
                    found[role] = f"{shown}:{first + i}"
        return found


PROGRAMS: dict[str, Broken] = {}


def broken(
    kind: str, module: str | None, *facts: str
) -> Callable[[Callable[[bool], Program]], Callable[[bool], Program]]:
    """Put a program into the table."""

    def keep(build: Callable[[bool], Program]) -> Callable[[bool], Program]:
        assert build.__name__ not in PROGRAMS, build.__name__
        PROGRAMS[build.__name__] = Broken(build, kind, module, facts)
        return build

    return keep
