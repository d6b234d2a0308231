"""The sentinel: sees whether a step is finite, and says where what is not came from."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from gradscope.capture.recompute import in_backward
from gradscope.explain.non_finite.levels import FINITE, KINDS, NAN, level
from gradscope.records.answers import Birth
from gradscope.training.sentinel.again import run_again
from gradscope.training.sentinel.calls import RecordedCall, began
from gradscope.training.sentinel.habits import Habits

Models = Callable[[], Sequence[tuple[str, nn.Module]]]


class Sentinel:
    """Keeps what is needed to run the calls of a step again, until the step ends.

    Args:
        models: the models that are trained now, with their names.
    """

    def __init__(self, models: Models) -> None:
        self._models = models
        self._calls: list[RecordedCall] = []
        self._habits: WeakKeyDictionary[nn.Module, dict[bool, Habits]] = WeakKeyDictionary()
        self._busy = False

    def call_began(
        self, name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """An outermost call of a trained model begins, with gradients enabled."""
        if self._busy or in_backward():
            return
        self._calls.append(began(name, module, args, kwargs, self._habits_of(module)))

    def call_ended(self, name: str, module: nn.Module, output: Any) -> None:
        """The call returned."""
        if self._busy or in_backward():
            return
        for call in reversed(self._calls):
            if call.module is module and not call.returned:
                call.ended(output)
                return

    def backward_begins(
        self, roots: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor | None]
    ) -> str | None:
        """A backward begins, and its graph is whole: "nan" or "inf" where a root is not finite."""
        worst = max(map(_level, roots), default=FINITE)
        return KINDS[worst] if worst else None

    def backward_ended(self) -> None:
        """The backward is over."""

    def locate(self, *, where: str) -> tuple[Birth, ...]:
        """The origins of what is not finite in this step, before the optimizer's step.

        Args:
            where: "loss" for a root that was not finite; "gradients" where they alone are not.
        """
        self._busy = True
        try:
            alone = len(self._models()) <= 1
            backward = where == "gradients"
            for call in reversed(self._calls) if backward else self._calls:
                if call.returned:
                    found = run_again(call, alone=alone, backward=backward)
                    if found:
                        return found
        finally:
            self._busy = False
        return ()

    def step_ended(self) -> None:
        """The optimizer has made its step, or has skipped it."""
        kept = [call for call in self._calls if call.waits and not call.carried]
        for call in self._calls:
            if call in kept:
                call.carried = True
            else:
                call.release()
        self._calls = kept

    def sampled_lines(self, roots: Sequence[torch.Tensor]) -> None:
        """In a step that keeps stacks, at the beginning of its backward: remember the lines."""

    def _habits_of(self, module: nn.Module) -> Habits:
        by_mode = self._habits.setdefault(module, {})
        habits = by_mode.get(module.training)
        if habits is None:
            habits = by_mode[module.training] = Habits(module)
        return habits


def _level(root: torch.Tensor) -> int:
    if root.numel() == 1 and root.layout == torch.strided:
        value = root.item()
        if isinstance(value, float):
            return FINITE if math.isfinite(value) else NAN if math.isnan(value) else 1
    return level(root)
