"""The optimizers of a run: what they are called, what they hold, how they are set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import nn
from torch.optim import Optimizer

from gradscope.training.discovery import variable_name
from gradscope.training.gradients import small


@dataclass(slots=True, weakref_slot=True, eq=False)
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

    def is_as_seen(self, optimizer: Optimizer) -> bool:
        """Whether it holds as many parameters in each group as when it was looked at."""
        seen, groups = self.groups, optimizer.param_groups
        same = len(seen) == len(groups) and bool(self.held)
        for count, group in zip(seen, groups, strict=False):
            same = same and count == len(group["params"])
        return same

    def look(self, optimizer: Optimizer) -> None:
        """Take in what it holds now."""
        self.groups = [len(group["params"]) for group in optimizer.param_groups]
        self.held = frozenset(p for g in optimizer.param_groups for p in g["params"])
        self.small = small(self.held)
        self.name = self.name or variable_name(optimizer) or type(optimizer).__name__


def settings(optimizer: Optimizer) -> dict[str, float]:
    """The plain numbers of its first parameter group."""
    group = optimizer.param_groups[0] if optimizer.param_groups else {}
    return {k: float(v) for k, v in group.items() if isinstance(v, int | float)}
