"""The learning rate stays at the optimizer's first value."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from torch.optim import Optimizer

from gradscope.experiment.interventions._during_step import during_step


def install(patches: ExitStack, notes: dict[str, Any], factor: float | None) -> None:
    """Keep each group's first learning rate in its steps.

    A scheduler notes that rate in the group, as does the optimizer in its defaults where all groups
    have one.
    """

    def constant(group: dict[str, Any], optimizer: Optimizer) -> dict[str, Any]:
        given = optimizer.defaults.get("lr")
        rate = given if len(optimizer.param_groups) == 1 else group.get("initial_lr", given)
        return {} if rate is None or "lr" not in group else {"lr": rate}

    during_step(patches, constant)
