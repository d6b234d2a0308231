"""The same plain PyTorch in float64, and with its starting values moved by one rounding of float32.

How far float32 lies from float64 is what another processor, or another number of threads, may do to
a number: bounds on stored numbers follow from it, network by network.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

_aten = torch.ops.aten
#: What draws a tensor, and what fills one.
_DRAWS, _FILLS = (_aten.randn, _aten.rand), (_aten.normal_, _aten.uniform_)

#: The distance of 1 to the next float32.
ROUNDING = 2.0**-23


class _Draws(TorchDispatchMode):
    """Random numbers are drawn in float32, whatever dtype asks; each may be moved by a rounding."""

    def __init__(self, moves: torch.Generator | None = None) -> None:
        super().__init__()
        self._moves = moves

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func.overloadpacket in _DRAWS:
            dtype = kwargs.get("dtype") or torch.get_default_dtype()
            return self._moved(func(*args, **{**kwargs, "dtype": torch.float32})).to(dtype)
        if func.overloadpacket in _FILLS and args[0].is_floating_point():
            drawn = torch.empty(args[0].shape, dtype=torch.float32)
            func(drawn, *args[1:], **kwargs)
            return args[0].copy_(self._moved(drawn))
        return func(*args, **kwargs)

    def _moved(self, drawn: Tensor) -> Tensor:
        if self._moves is None:
            return drawn
        steps = torch.rand(drawn.shape, generator=self._moves, dtype=torch.float64) * 2 - 1
        return drawn.double() * (1 + steps * ROUNDING)


class _NoFloat(TorchFunctionMode):
    """``tensor.float()`` stays in float64."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is Tensor.float:
            func = Tensor.double
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def float64() -> Iterator[None]:
    """Networks built here have the weights that they would have in float32, and run in float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _Draws(), _NoFloat():
            yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def one_rounding_away(seed: int) -> Iterator[None]:
    """Weights and inputs that are drawn here differ from their own by one rounding at most."""
    with _Draws(torch.Generator().manual_seed(seed)):
        yield
