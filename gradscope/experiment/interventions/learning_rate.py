"""Multiplies all learning rates during each step; schedules see their own rates."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from gradscope.experiment.interventions._during_step import during_step


def install(patches: ExitStack, notes: dict[str, Any], factor: float) -> None:
    """Multiply the rate of each group by ``factor``."""

    def scaled(group: dict[str, Any], _: Any) -> dict[str, Any]:
        rate = group.get("lr")
        if rate is None:
            return {}
        notes["steps"] = notes.get("steps", 0) + 1
        return {"lr": rate * factor}

    during_step(patches, scaled)
