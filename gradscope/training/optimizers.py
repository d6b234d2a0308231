"""The optimizers of a run: what they are called, what they hold, how they are set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import nn
from torch.optim import Optimizer

from gradscope.training.discovery import variable_name
from gradscope.training.gradients import small


@dataclass(slots=True)
class SeenOptimizer:
    """An optimizer that was seen: what the run calls it, and how many steps it made."""

    name: str = ""
    steps: int = 0
    backwards: int = 1  # in its last step
    loss: float | None = None  # of its last step that was recorded
    held: frozenset[nn.Parameter] = frozenset()
    small: Sequence[nn.Parameter] = ()  # those of ``held`` whose gradients every step reads
    settings: dict[str, float] = field(default_factory=dict)  # as the step found them
    groups: Sequence[int] = ()

    def look(self, optimizer: Optimizer) -> bool:
        """Take in what it holds now; whether that is something else than before."""
        groups = [len(group["params"]) for group in optimizer.param_groups]
        if self.groups == groups and self.held:
            return False
        self.groups = groups
        self.held = frozenset(p for g in optimizer.param_groups for p in g["params"])
        self.small = small(self.held)
        self.name = self.name or variable_name(optimizer) or type(optimizer).__name__
        return True


def learning_rates(optimizer: Optimizer) -> tuple[float, ...]:
    """Of each parameter group."""
    return tuple([float(group["lr"]) for group in optimizer.param_groups if "lr" in group])


def settings(optimizer: Optimizer) -> dict[str, float]:
    """The plain numbers of its first parameter group."""
    group = optimizer.param_groups[0] if optimizer.param_groups else {}
    return {k: float(v) for k, v in group.items() if isinstance(v, int | float)}
