"""The table of programs that make a NaN or Inf: each builds a model and its step.

The line that makes it bears the comment ``# origin``. With ``mended`` the same program has its
smallest fix, and everything that stays is finite.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn


class Program(NamedTuple):
    """A model, what runs it and its loss, the optimizer's step, and what it is given."""

    model: nn.Module
    forward: Callable[[], torch.Tensor]
    step: Callable[[], None] | None = None
    inputs: dict[str, Any] | None = None


@dataclass(frozen=True)
class Expected:
    """One origin: of what, when, by what, in which call of which module, and the words."""

    kind: str
    phase: str
    op: str | None
    module: str | None
    reason: str
    mark: str | None = "# origin"
    call: int | None = None


@dataclass(frozen=True)
class Case:
    """A broken program with the origins that it has."""

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


ORIGINS: dict[str, Case] = {}


def origin(
    kind: str,
    phase: str,
    op: str | None,
    module: str | None,
    reason: str,
    mark: str | None = "# origin",
    call: int | None = None,
) -> Callable[[Callable[[bool], Program]], Callable[[bool], Program]]:
    """Put a program into the table; several of these expect several origins."""

    def keep(build: Callable[[bool], Program]) -> Callable[[bool], Program]:
        key = build.__name__
        before = ORIGINS[key].expected if key in ORIGINS else ()
        one = Expected(kind, phase, op, module, reason, mark, call)
        ORIGINS[key] = Case(build, (one, *before))
        return build

    return keep


def broken_in(program: Program) -> set[str]:
    """Return the non-finite parts in plain PyTorch: "loss", "gradient", "parameter", "buffer"."""
    model, forward, step, _ = program
    for parameter in model.parameters():
        parameter.grad = None
    found = set()
    if not _finite(model.parameters()):
        found.add("parameter")
    loss = forward()
    if not _finite([loss]):
        found.add("loss")
    loss.backward()
    if not _finite(p.grad for p in model.parameters() if p.grad is not None):
        found.add("gradient")
    if step is not None:
        step()
    if not _finite(model.parameters()):
        found.add("parameter")
    if not _finite(b for b in model.buffers() if b.is_floating_point()):
        found.add("buffer")
    return found


def _finite(tensors: Iterable[torch.Tensor]) -> bool:
    return all(bool(t.detach().isfinite().all()) for t in tensors)
