"""What a model returned, searched for the tensor that a loss is made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from gradscope.nesting import find


def tensors(output: Any) -> Iterator[tuple[str, Tensor]]:
    """Each tensor in an output with its path, in order, through every nesting."""
    return find(output, Tensor)


def first_floating(output: Any) -> tuple[str, Tensor] | None:
    """The first tensor of real floating numbers, with its path; None where there is none."""
    return next(((p, t) for p, t in tensors(output) if t.is_floating_point()), None)


def own_loss(output: Any) -> tuple[str, Tensor] | None:
    """The loss that the model computed itself, with its name.

    ``.loss``, ``["loss"]``, or the sum of a mapping that holds nothing but scalars (a detection
    model's losses in train mode); None where the output has none of these.
    """
    if isinstance(output, Tensor):
        return None
    found = getattr(output, "loss", None)
    if not isinstance(found, Tensor) and isinstance(output, Mapping):
        found = output.get("loss")
    if isinstance(found, Tensor):
        return "output.loss", found
    if isinstance(output, Mapping) and output and all(map(_is_scalar, output.values())):
        parts = [part.reshape(()) for part in output.values()]
        return "output", torch.stack(parts).sum() if _alike(parts) else sum(parts[1:], parts[0])
    return None


def _is_scalar(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and value.numel() == 1


def _alike(parts: list[Tensor]) -> bool:
    return len({(part.dtype, part.device) for part in parts}) == 1


def describe(output: Any) -> str:
    """What an output holds, for a message: ``complex64 [2, 3]``, ``no tensor (a str)``."""
    found = [f"{str(t.dtype).removeprefix('torch.')} {list(t.shape)}" for _, t in tensors(output)]
    if not found:
        return f"no tensor (a {type(output).__name__})"
    return ", ".join(found[:3]) + (", …" if len(found) > 3 else "")
