"""Put VALUE in its place: a number for every element, or a tensor.

The gradient upstream of an activation is then zero, as of any constant.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gradscope.actions import Action, is_number

if TYPE_CHECKING:
    from torch import Tensor


def change(tensor: Tensor, value: float | Tensor) -> Tensor:
    """Return the value at each element, on the tensor's device and in its dtype."""
    if isinstance(value, int | float):
        return tensor.clone().fill_(value)
    return tensor.clone().copy_(value.expand_as(tensor))


def accepts(value: Any) -> bool:
    """Return True for a number, nested lists of numbers, or a source such as a file."""
    if isinstance(value, list):
        return bool(value) and all(map(accepts, value))
    return is_number(value) or (isinstance(value, Mapping) and set(value) <= {"file", "values"})


ACTION = Action(change, "a number, nested lists of numbers, or {file: PATH}", accepts)
