"""Keeps the learning rate at the optimizer's first value."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from torch.optim import Optimizer

from gradscope.experiment.interventions._during_step import during_step


def install(patches: ExitStack, notes: dict[str, Any], factor: float | None) -> None:
    """Use each group's first learning rate in every step.

    The scheduler stores it in the group; the optimizer's defaults have it if all groups share one.
    """

    def constant(group: dict[str, Any], optimizer: Optimizer) -> dict[str, Any]:
        given = optimizer.defaults.get("lr")
        rate = given if len(optimizer.param_groups) == 1 else group.get("initial_lr", given)
        return {} if rate is None or "lr" not in group else {"lr": rate}

    during_step(patches, constant)
