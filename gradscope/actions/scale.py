"""Multiply by VALUE."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradscope.actions._action import Action, is_number

if TYPE_CHECKING:
    from torch import Tensor


def change(tensor: Tensor, factor: float) -> Tensor:
    """The tensor times the factor."""
    return tensor * factor


ACTION = Action(change, "a number", is_number)
