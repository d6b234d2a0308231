"""The optimizers of a run: their names, parameters and settings."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from gradscope.capture.remembered import RememberedTensor, remembered
from gradscope.training.discovery import variable_name
from gradscope.training.gradients import small


class LastingParameters:
    """The parameters of an optimizer; once it is freed, those that are alive."""

    __slots__ = ("_held", "_left")

    def __init__(self) -> None:
        self._held: tuple[torch.Tensor, ...] = ()
        self._left: tuple[RememberedTensor, ...] = ()

    def hold(self, parameters: Sequence[torch.Tensor]) -> None:
        """Note the parameters of the living optimizer."""
        self._held = tuple(parameters)

    def let_go(self) -> None:
        """Note that the script freed the optimizer."""
        self._left, self._held = tuple(map(remembered, self._held)), ()

    def each(self) -> list[torch.Tensor | None]:
        """Return each parameter in order; None for a freed one."""
        return [*self._held, *(one() for one in self._left)]

    def alive(self) -> list[Any]:
        """Return the parameters that are alive."""
        return [one for one in self.each() if one is not None]


@dataclass(slots=True, weakref_slot=True, eq=False)
class ObservedOptimizer:
    """An observed optimizer: its name in the run, and its number of steps."""

    name: str = ""
    kind: str | None = None  # its class
    steps: int = 0
    backwards: int = 1  # of its last step, until the gradients were ready
    loss: float | None = None  # of its last step that was recorded
    held: frozenset[nn.Parameter] = frozenset()
    lasting: LastingParameters = field(default_factory=LastingParameters)
    is_unscaled: bool = False  # a gradient scaler divided the gradients of this step
    small: Sequence[nn.Parameter] = ()  # those of ``held`` whose gradients every step reads
    settings: dict[str, float] = field(default_factory=dict)  # as the step found them
    groups: Sequence[int] = ()

    def is_as_seen(self, optimizer: Optimizer) -> bool:
        """Return True if each group has as many parameters as at the last reading."""
        seen, groups = self.groups, optimizer.param_groups
        same = len(seen) == len(groups) and bool(self.held)
        for count, group in zip(seen, groups, strict=False):
            same = same and count == len(group["params"])
        return same

    def note(self, optimizer: Optimizer) -> None:
        """Read the optimizer's present parameters."""
        self.groups = [len(group["params"]) for group in optimizer.param_groups]
        parameters = [p for g in optimizer.param_groups for p in g["params"]]
        self.held = frozenset(parameters)
        self.lasting.hold(parameters)
        self.small = small(self.held)
        self.kind = type(optimizer).__name__

    def __del__(self) -> None:
        self.lasting.let_go()


class Optimizers:
    """All live optimizers.

    Attributes:
        any: True if there ever was an optimizer.

    Args:
        changed: called with an optimizer whose parameters changed.
    """

    any = False

    def __init__(self, changed: Callable[[ObservedOptimizer], None]) -> None:
        self._changed = changed
        self._seen: weakref.WeakKeyDictionary[Optimizer, ObservedOptimizer] = (
            weakref.WeakKeyDictionary()
        )
        # The parameters of each optimizer that had the name, by name.
        self._named: dict[str, list[LastingParameters]] = {}
        # The one that stepped last; weak, as it holds the parameters.
        self._latest: tuple[weakref.ref[Optimizer], weakref.ref[ObservedOptimizer]] | None = None

    def __iter__(self) -> Iterator[ObservedOptimizer]:
        return iter(self._seen.values())

    def alive(self) -> list[Optimizer]:
        """Return the live optimizers."""
        return list(self._seen)

    def add(self, optimizer: Optimizer) -> ObservedOptimizer:
        """Add a new optimizer."""
        self.any = True
        seen = self._seen[optimizer] = ObservedOptimizer()
        return seen

    def known(self, optimizer: Optimizer) -> ObservedOptimizer:
        """Return the record of an optimizer with its current parameters. Called in every step."""
        latest = self._latest
        known = latest[1]() if latest is not None and latest[0]() is optimizer else None
        if known is not None and known.is_as_seen(optimizer):
            return known
        known = self._seen.get(optimizer) or self.add(optimizer)
        self._latest = weakref.ref(optimizer), weakref.ref(known)
        if not known.is_as_seen(optimizer):
            known.note(optimizer)
            known.name = known.name or self._name(optimizer, known)
            self._changed(known)
        return known

    def _name(self, optimizer: Optimizer, known: ObservedOptimizer) -> str:
        """Return the name of the optimizer's variable, else of its class.

        An optimizer that is made anew for the same parameters keeps the name. One for other
        parameters, such as in the next phase of a script, gets another name, because its losses are
        not comparable.
        """
        plain = variable_name(optimizer) or type(optimizer).__name__
        name, number = plain, 1
        while (before := self._named.get(name)) and not any(
            one.each()[:1] and one.each()[0] in known.held for one in before
        ):
            number += 1
            name = f"{plain}#{number}"
        self._named.setdefault(name, []).append(known.lasting)
        return name

    def held(self) -> list[nn.Parameter]:
        """Return the parameters of all optimizers."""
        return list(dict.fromkeys(p for known in self for p in known.held))

    @property
    def backwards(self) -> int:
        """The smallest number of backwards until gradients were ready, in the last steps."""
        return min([known.backwards for known in self], default=1)

    def any_gradient(self) -> bool:
        """Return True if a parameter of an optimizer has a gradient."""
        for optimizer in self._seen:
            for group in getattr(optimizer, "param_groups", ()):
                if any(p.grad is not None for p in group["params"]):
                    return True
        return False


def settings(optimizer: Optimizer) -> dict[str, float]:
    """Return the plain numbers of its first parameter group."""
    group = optimizer.param_groups[0] if optimizer.param_groups else {}
    return {k: float(v) for k, v in group.items() if isinstance(v, int | float)}
