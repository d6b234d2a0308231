"""Numbers that came out of tensors, and still tell which."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from gradscope.nesting import find


class Number(float):
    """A float that came out of a tensor, and what was computed from it, with the values' numbers.

    It is a float to everything else; the functions of ``math`` give a plain one.
    """

    sources: frozenset[int]

    def __new__(cls, value: float, sources: frozenset[int]) -> Number:
        made = super().__new__(cls, value)
        made.sources = sources
        return made

    def __reduce__(self) -> tuple[type[float], tuple[float]]:
        return float, (float(self),)


def _traced(name: str) -> Callable[..., Any]:
    plain = getattr(float, name)

    def method(self: Number, *others: Any) -> Any:
        result = plain(self, *others)
        if type(result) is not float:
            return result
        sources = self.sources
        for other in others:
            if isinstance(other, Number):
                sources |= other.sources
        return Number(result, sources)

    method.__name__ = name
    return method


for _name in [
    "add",
    "sub",
    "mul",
    "truediv",
    "floordiv",
    "mod",
    "pow",
    "radd",
    "rsub",
    "rmul",
    "rtruediv",
    "rfloordiv",
    "rmod",
    "rpow",
    "neg",
    "pos",
    "abs",
]:
    setattr(Number, f"__{_name}__", _traced(f"__{_name}__"))


def values_in(tree: Any) -> list[torch.Tensor | Number]:
    """Tensors and traced numbers in nested arguments."""
    tensors = (tensor for _, tensor in find(tree, torch.Tensor))
    return [*tensors, *(number for _, number in find(tree, Number))]


def address_of(array: Any) -> int | None:
    """Where an array of NumPy's has its data."""
    if not isinstance(array, np.ndarray):
        return None
    return int(array.__array_interface__["data"][0])


def numbered(result: Any, sources: frozenset[int]) -> Any:
    """The floats of a result as traced numbers."""
    if type(result) is float:
        return Number(result, sources)
    if type(result) is list:
        return [numbered(item, sources) for item in result]
    return result
