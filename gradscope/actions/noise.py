"""Add Gaussian noise with standard deviation VALUE, from the run's random numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradscope.actions._action import Action, is_positive

if TYPE_CHECKING:
    from torch import Tensor


def change(tensor: Tensor, deviation: float) -> Tensor:
    """The tensor plus independent noise on each element.

    PyTorch's own generator gives it, so that a checkpoint which runs a part again adds the same.
    """
    return tensor + deviation * tensor.detach().clone().normal_()


ACTION = Action(change, "a number above 0", is_positive)
