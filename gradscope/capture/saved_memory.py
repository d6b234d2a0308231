"""Counts the bytes saved for backward in a separate run.

Used if reading them from the nodes would recompute a checkpoint. Never used in a run whose
gradients count: hooks on saved tensors disable autograd's check for in-place writes, and a gradient
could silently be wrong.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from gradscope.capture.calls import Call, CallStack
from gradscope.capture.graph import SavedBytes, edge_of, walk
from gradscope.capture.hooks import hookable_modules, hooked
from gradscope.capture.names import named_modules

_AUTOGRAD: Any = torch._C._autograd


@contextmanager
def noticing_hooked_saves(seen: Callable[[], None]) -> Iterator[None]:
    """Call ``seen`` when other hooks (of a checkpoint or an offloader) handle saved tensors.

    Needed for older releases of torch, such as 2.8; later ones have an attribute for the hook of
    each saved tensor.
    """
    if hasattr(_AUTOGRAD.SavedTensor, "unpack_hook"):
        yield
        return
    push = _AUTOGRAD._push_saved_tensors_default_hooks

    def noticed(*hooks: Any) -> None:
        seen()
        push(*hooks)

    _AUTOGRAD._push_saved_tensors_default_hooks = noticed
    try:
        yield
    finally:
        _AUTOGRAD._push_saved_tensors_default_hooks = push


@contextmanager
def counting_saved(model: nn.Module) -> Iterator[SavedBytes]:
    """Count the tensors that a forward inside the block saves, by the number of the innermost
    call."""
    saved = SavedBytes(model.parameters())
    modules = named_modules(model)
    stack = CallStack()
    entered = 0

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        nonlocal entered
        if module in modules:
            frame = sys._getframe(2)
            stack.innermost(frame)
            stack.enter(frame, Call(entered, module, modules[module], 0, -1, 0, True, True))
            entered += 1

    def after(
        module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        stack.leave(sys._getframe(2))

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        call = stack.innermost(sys._getframe())
        saved.add(tensor, call.index if call else -1)
        return tensor

    with (
        hooked(hookable_modules(model), before, after),
        torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
    ):
        yield saved


def keeps_scores(loss: torch.Tensor) -> bool:
    """Return True if ``scaled_dot_product_attention`` ran as separate operations, as on meta."""
    if not loss.requires_grad:
        return False
    nodes = walk([edge_of(loss)], set()).nodes
    return any(type(node).__name__ == "SafeSoftmaxBackward0" for node in nodes)
