"""Bytes saved for backward, counted in a run of their own.

Used where reading them off the nodes would recompute a checkpoint. Never while gradients are
produced: with hooks on saved tensors autograd's check for in-place writes does not see them, and
the gradient would silently be wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from gradscope.capture.graph import SavedBytes
from gradscope.capture.hooks import hooked, named_modules


@contextmanager
def counting_saved(model: nn.Module) -> Iterator[SavedBytes]:
    """Count what a forward inside the block saves, by the number of the innermost call."""
    saved = SavedBytes(model.parameters())
    stack: list[tuple[nn.Module, int]] = []
    entered = 0

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        nonlocal entered
        stack.append((module, entered))
        entered += 1

    def after(
        module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        while stack.pop()[0] is not module:
            continue

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        saved.add(tensor, stack[-1][1] if stack else -1)
        return tensor

    with (
        hooked(list(named_modules(model)), before, after),
        torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
    ):
        yield saved
