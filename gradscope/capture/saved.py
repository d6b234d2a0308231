"""Bytes saved for backward, counted in a run of their own.

Used where reading them off the nodes would recompute a checkpoint. Never while gradients are
produced: with hooks on saved tensors autograd's check for in-place writes does not see them, and
the gradient would silently be wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from gradscope.capture.graph import SavedBytes
from gradscope.capture.hooks import hooked, named_modules

_AUTOGRAD: Any = torch._C._autograd
_depth = 0  # of hooks on saved tensors, where torch cannot be asked


def saving_is_hooked() -> bool:
    """Whether somebody's hooks (a checkpoint's, an offloader's) see the tensors that are saved now.

    For torch 2.6, which cannot be asked, ``noticing_hooked_saves`` must be active.
    """
    if hasattr(_AUTOGRAD, "_top_saved_tensors_default_hooks"):
        return _AUTOGRAD._top_saved_tensors_default_hooks(True) is not None
    return _depth > 0


@contextmanager
def noticing_hooked_saves() -> Iterator[None]:
    """Count the hooks as they come and go, on torch 2.6; later versions know their own."""
    if hasattr(_AUTOGRAD, "_top_saved_tensors_default_hooks"):
        yield
        return
    global _depth
    push = _AUTOGRAD._push_saved_tensors_default_hooks
    pop = _AUTOGRAD._pop_saved_tensors_default_hooks

    def counted(function: Callable[..., None], change: int) -> Callable[..., None]:
        def call(*hooks: Any) -> None:
            global _depth
            function(*hooks)
            _depth += change

        return call

    _AUTOGRAD._push_saved_tensors_default_hooks = counted(push, 1)
    _AUTOGRAD._pop_saved_tensors_default_hooks = counted(pop, -1)
    try:
        yield
    finally:
        _AUTOGRAD._push_saved_tensors_default_hooks = push
        _AUTOGRAD._pop_saved_tensors_default_hooks = pop
        _depth = 0


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
