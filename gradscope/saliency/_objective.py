"""The number per image that is explained."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradscope.errors import OptionError


@dataclass(frozen=True, slots=True)
class Objective:
    """The number per image that is explained: a class's logit, or by how much it beats another's.

    ``target`` and ``versus`` are class ids [N]; without a target it is the highest logit's class.
    """

    target: Tensor | None = None
    versus: Tensor | None = None

    def __call__(self, logits: Tensor, owners: Tensor) -> Tensor:
        """The score [M] of logits [M, classes]; ``owners`` [M] says whose row is whose image's."""
        if self.target is None:
            return logits.max(dim=1).values
        rows = torch.arange(len(logits), device=logits.device)
        score = logits[rows, self.target[owners]]
        return score if self.versus is None else score - logits[rows, self.versus[owners]]

    def to(self, device: torch.device) -> Objective:
        """The same with its class ids on a device."""
        target = None if self.target is None else self.target.to(device)
        versus = None if self.versus is None else self.versus.to(device)
        return Objective(target, versus)

    def check(self, classes: int) -> None:
        """Raise OptionError for an id that is no class of the model."""
        for ids in (self.target, self.versus):
            wrong = [] if ids is None else [i for i in ids.tolist() if not 0 <= i < classes]
            if wrong:
                raise OptionError(
                    f"there is no class {wrong[0]}: the model has {classes} classes",
                    help=f"name a class from 0 to {classes - 1}",
                )
