"""Finds the tensor for the loss in a model's output."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from gradscope.nesting import find


def tensors(output: Any) -> Iterator[tuple[str, Tensor]]:
    """Each tensor in an output with its path, in order, through every nesting."""
    return find(output, Tensor)


def first_floating(output: Any, *, with_graph: bool = False) -> tuple[str, Tensor] | None:
    """The first tensor of real floating numbers, with its path; None where there is none."""
    floating = ((p, t) for p, t in tensors(output) if t.is_floating_point())
    return next((one for one in floating if one[1].requires_grad or not with_graph), None)


def describe(output: Any) -> str:
    """What an output holds, for a message: ``complex64 [2, 3]``, ``no tensor (a str)``."""
    found = [f"{str(t.dtype).removeprefix('torch.')} {list(t.shape)}" for _, t in tensors(output)]
    if not found:
        return f"no tensor (a {type(output).__name__})"
    return ", ".join(found[:3]) + (", …" if len(found) > 3 else "")
