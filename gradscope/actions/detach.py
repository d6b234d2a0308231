"""Cut the graph upstream of it, as ``Tensor.detach`` does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradscope.actions._action import Action

if TYPE_CHECKING:
    from torch import Tensor


def change(tensor: Tensor, _: None) -> Tensor:
    """The same numbers without a history."""
    return tensor.detach()


ACTION = Action(change, places=("activation",))
