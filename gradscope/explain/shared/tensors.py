"""The tensors in a nesting, and what distinguishes them: their memory, their version."""

from __future__ import annotations

from typing import Any

import torch

from gradscope.nesting import find


def tensors_in(tree: Any) -> list[torch.Tensor]:
    """Every tensor in nested arguments or results, bare."""
    return [bare(tensor) for _, tensor in find(tree, torch.Tensor)]


def bare(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor inside the wrappers of ``vmap`` and its like."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


def memory_of(tensor: torch.Tensor) -> int:
    """What tells the tensor's memory from others'; 0 where it has none of its own."""
    if tensor.layout != torch.strided:
        return 0
    try:
        return int(tensor.untyped_storage()._cdata)
    except (RuntimeError, NotImplementedError):  # a wrapper without storage
        return 0


def version_of(tensor: torch.Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version
