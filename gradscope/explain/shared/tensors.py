"""What a tensor, an array or a nesting of them is to the tracer: its memory, its version."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from gradscope.explain.shared.operations import Number, leaves


def tensors_in(result: Any) -> list[torch.Tensor]:
    return [bare(item) for item in leaves(result) if isinstance(item, torch.Tensor)]


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


def address_of(array: Any) -> int | None:
    if not isinstance(array, np.ndarray):
        return None
    return int(array.__array_interface__["data"][0])


def numbered(result: Any, sources: frozenset[int]) -> Any:
    if type(result) is float:
        return Number(result, sources)
    if type(result) is list:
        return [numbered(item, sources) for item in result]
    return result
