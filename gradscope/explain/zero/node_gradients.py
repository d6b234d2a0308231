"""The gradients of one node in backward: nonzero, zero or missing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

Gradients = tuple[torch.Tensor | None, ...]
#: So many numbers are read before all of a tensor is.
_FEW = 4096


@dataclass(slots=True)
class NodeGradients:
    """What one node got and gave: ``given`` holds True, False for zeros, None for nothing."""

    arrived: bool = False
    given: tuple[bool | None, ...] = ()
    kept: Gradients = ()


@dataclass(slots=True)
class BackwardOptions:
    """How backward is to run: ``short`` leaves out what would only carry zeros on."""

    short: bool = False


def any_nonzero(tensor: torch.Tensor) -> bool:
    """Whether anything in it is not zero; NaN is not."""
    if tensor.layout == torch.sparse_coo:
        tensor = tensor._values()
    # Hardly a tensor begins with so many zeros: most often a look at its beginning is enough.
    large = tensor.numel() > _FEW and tensor.layout == torch.strided and tensor.is_contiguous()
    return (large and bool(tensor.detach().view(-1)[:_FEW].any())) or bool(tensor.any())


def reading_hook(
    passed: NodeGradients, options: BackwardOptions
) -> Callable[..., Gradients | None]:
    # Holds what was noted, not the node: a node that its own hook holds would never be freed.
    def read(sent: Gradients, got: Gradients) -> Gradients | None:
        passed.arrived = any(g is not None and any_nonzero(g) for g in got)
        passed.given = tuple(None if g is None else any_nonzero(g) for g in sent)
        zero = not all(gave is not False for gave in passed.given)
        if passed.arrived and zero:
            passed.kept = tuple(None if g is None else g.detach() for g in got)
        if not (zero and options.short):
            return None
        return tuple(g if gave else None for g, gave in zip(sent, passed.given, strict=True))

    return read
