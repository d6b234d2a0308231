"""The table of programs whose gradients are exactly zero, in the manner of ``missing.cases``.

The line to name bears the comment ``# zero`` (``# zero b`` for a second place). With ``mended`` the
same program has its smallest fix, and no parameter's gradient is zero.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from explain.missing.cases import Case, Expected, Program


@dataclass(frozen=True)
class Zero(Expected):
    """One answer; ``recovers`` is what a look after an optimizer step must say, None for any."""

    recovers: bool | None = None


ZEROS: dict[str, Case] = {}

Build = Callable[[bool], Program]


def zero(
    cause: str | None,
    module: str | None = None,
    mark: str | None = "# zero",
    name: str | None = None,
    recovers: bool | None = None,
) -> Callable[[Build], Build]:
    """Put a program into the table; several of these expect several answers."""

    def keep(build: Build) -> Build:
        key = build.__name__
        before = ZEROS[key].expected if key in ZEROS else ()
        ZEROS[key] = Case(build, (Zero(cause, module, mark, name, recovers), *before))  # type: ignore[arg-type]
        return build

    return keep


def zero_names(model: nn.Module, forward: Callable[[], torch.Tensor]) -> list[str]:
    """The parameters to which plain PyTorch gives a gradient of nothing but zeros."""
    for parameter in model.parameters():
        parameter.grad = None
    forward().backward()
    gradients = ((name, p.grad) for name, p in model.named_parameters() if p.requires_grad)
    found = [name for name, g in gradients if g is not None and not g.to_dense().any()]
    for parameter in model.parameters():
        parameter.grad = None
    return found


X = torch.linspace(-1, 1, 12).reshape(3, 4)
Y = torch.tensor([0, 1, 1])
