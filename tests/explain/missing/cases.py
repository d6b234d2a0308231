"""The table of broken programs: a case is a function that builds the model and its step.

The line that cuts bears the comment ``# cut`` (``# cut b`` for a second place). With ``mended`` the
same program has its smallest fix, and nothing is missing.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

Program = tuple[nn.Module, Callable[[], torch.Tensor]]


@dataclass(frozen=True)
class Expected:
    """One answer: its cause, the executing module, the mark of its line, the first name behind."""

    cause: str
    module: str | None = None
    mark: str | None = "# cut"
    name: str | None = None


@dataclass(frozen=True)
class Case:
    """A broken program with the answers that it should get."""

    build: Callable[[bool], Program]
    expected: tuple[Expected, ...]

    def line(self, mark: str) -> str:
        """``file:line`` of the marked line, as a user in the current directory would write it."""
        lines, first = inspect.getsourcelines(self.build)
        found = [first + i for i, text in enumerate(lines) if text.rstrip().endswith(mark)]
        assert len(found) == 1, f"{self.build.__name__}: {len(found)} lines marked {mark}"
        file = Path(inspect.getsourcefile(self.build) or "")
        near = file.is_relative_to(Path.cwd())
        return f"{file.relative_to(Path.cwd()) if near else file}:{found[0]}"


CASES: dict[str, Case] = {}


def case(
    cause: str, module: str | None = None, mark: str | None = "# cut", name: str | None = None
) -> Callable[[Callable[[bool], Program]], Callable[[bool], Program]]:
    """Put a program into the table; several of these expect several answers."""

    def keep(build: Callable[[bool], Program]) -> Callable[[bool], Program]:
        key = build.__name__
        before = CASES[key].expected if key in CASES else ()
        CASES[key] = Case(build, (Expected(cause, module, mark, name), *before))
        return build

    return keep


def missing_names(model: nn.Module, forward: Callable[[], torch.Tensor]) -> list[str]:
    """Return the parameters that require a gradient and get none in plain PyTorch."""
    for parameter in model.parameters():
        parameter.grad = None
    loss = forward()
    if loss.requires_grad:
        loss.backward()
    names = [n for n, p in model.named_parameters() if p.requires_grad and p.grad is None]
    for parameter in model.parameters():
        parameter.grad = None
    return names


class Two(nn.Module):
    """Two layers for a step that uses both."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.out = nn.Linear(4, 4), nn.Linear(4, 2)
