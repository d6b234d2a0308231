"""Tensors that are spread over processes: what this one has of them, with no word to the others.

Nearly every operation on a ``DTensor`` may communicate, a comparison and ``item()`` among them; a
process that does so alone waits for the others forever. So nothing here or above computes with one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

_UNCOUNTED = itertools.count(1)
_PLAIN = (torch.Tensor, nn.Parameter)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """What this process has of a tensor: of a ``DTensor`` its shard, of others the tensor itself.

    What the script has sent for already is waited for.
    """
    if type(tensor) in _PLAIN:
        return tensor
    # Not `to_local`, which makes a node of the graph.
    part: Any = getattr(tensor, "_local_tensor", tensor)
    if type(part).__name__ == "AsyncCollectiveTensor":
        waited: torch.Tensor = part.wait()
        return waited
    return part if isinstance(part, torch.Tensor) else tensor


def is_spread(tensor: torch.Tensor) -> bool:
    """Whether it is a ``DTensor``."""
    return type(tensor) not in _PLAIN and hasattr(tensor, "_local_tensor")


def is_plain_or_spread(tensor: torch.Tensor) -> bool:
    """Whether it is no other subclass: of a quantized one nobody knows what it can compute."""
    return type(tensor) in _PLAIN or hasattr(tensor, "_local_tensor")


def placements_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    """PyTorch's own placements of a ``DTensor``, one for each dimension of its mesh."""
    found: tuple[Any, ...] = getattr(tensor, "placements", ()) if is_spread(tensor) else ()
    return found


def version_of(tensor: torch.Tensor) -> tuple[int, int]:
    """What changes with each write to a tensor.

    Never the same twice where PyTorch does not count them all, as those of ``clip_grad_norm_``: of
    a ``DTensor``, and where a dispatch mode is on.
    """
    if type(tensor) in _PLAIN and not torch._C._len_torch_dispatch_stack():
        return id(tensor), tensor._version
    return id(tensor), -next(_UNCOUNTED)


def versions_of(tensors: Iterable[torch.Tensor]) -> list[tuple[int, int]]:
    """``version_of`` each: of many, without a frame of Python's for each."""
    if torch._C._len_torch_dispatch_stack():
        return list(map(version_of, tensors))
    return [(id(t), t._version) if type(t) in _PLAIN else version_of(t) for t in tensors]


def written_class(module: nn.Module) -> type[nn.Module]:
    """The class that the script gave a module: ``fully_shard`` and the like derive one from it."""
    kind = type(module)
    while kind.__module__.startswith("torch.distributed.") and len(kind.__bases__) == 2:
        written = kind.__bases__[1]
        if not issubclass(written, nn.Module):  # of a wrapper, which is no class of the script's
            break
        kind = written
    return kind
