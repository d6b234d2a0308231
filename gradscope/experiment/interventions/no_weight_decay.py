"""Makes every optimizer step without weight decay."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from torch.optim import Optimizer

from gradscope.experiment.interventions._during_step import during_step


def install(patches: ExitStack, notes: dict[str, Any], factor: float | None) -> None:
    """Set each group's ``weight_decay`` to 0 during its steps."""

    def without(group: dict[str, Any], _: Optimizer) -> dict[str, Any]:
        return {"weight_decay": 0.0} if group.get("weight_decay") else {}

    during_step(patches, without)
