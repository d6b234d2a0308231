"""Limit each element to the range from -VALUE to VALUE."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradscope.actions._action import Action, is_positive

if TYPE_CHECKING:
    from torch import Tensor


def change(tensor: Tensor, limit: float) -> Tensor:
    """The tensor with its elements clamped."""
    return tensor.clamp(-limit, limit)


ACTION = Action(change, "a number above 0", is_positive)
