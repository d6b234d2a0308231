"""Finds weights that the script draws at random again while an optimizer trains them."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch.optim import Optimizer

from gradscope.capture.shards import PLAIN
from gradscope.records.loop_figures import LoopFact
from gradscope.training.loop.optimizer_uses import OptimizerUse, OptimizerUses
from gradscope.training.loop.script_lines import calling_place

#: The address and the shape of a weight: ``weight.data`` has the same.
_Weight = tuple[int, tuple[int, ...]]


@dataclass(slots=True)
class _Drawn:
    """The weights of one optimizer, and how often the script has drawn most of them again."""

    state: int  # the id of the optimizer's state, which a script replaces to begin anew
    steps: int = -1  # of the optimizer, at the latest draw
    weights: set[_Weight] = field(default_factory=set)
    left: set[_Weight] = field(default_factory=set)  # not drawn since these steps
    count: int = 0
    anew: bool = False  # the script has emptied the optimizer's state once
    location: str | None = None


class RedrawnWeights:
    """Counts how often weights are drawn again after steps of an optimizer that goes on.

    Args:
        uses: the optimizers of the training.
    """

    def __init__(self, uses: OptimizerUses) -> None:
        self._uses = uses
        self._of: weakref.WeakKeyDictionary[Optimizer, _Drawn] = weakref.WeakKeyDictionary()
        self._counted: list[tuple[OptimizerUse, _Drawn]] = []

    def drawn(self, tensor: object) -> None:
        """Note a tensor that ``torch.nn.init`` filled with random numbers."""
        for optimizer, use in self._uses:
            # Several optimizers, or one without a state, may begin anew on purpose.
            if not (use.parameters.steps and optimizer.state) or len(self._uses.every) > 1:
                continue
            weight = _weight(tensor)
            if weight is not None:
                self._note(optimizer, use, weight)

    def _note(self, optimizer: Optimizer, use: OptimizerUse, weight: _Weight) -> None:
        state, steps = id(optimizer.state), use.parameters.steps
        known = self._of.get(optimizer)
        if known is None or known.state != state:
            known = self._of[optimizer] = _Drawn(state)
            self._counted.append((use, known))
        if known.steps != steps:
            known.steps = steps
            held = (p for group in optimizer.param_groups for p in group["params"])
            known.weights = {one for p in held if (one := _weight(p)) is not None}
            known.left = set(known.weights)
            known.anew = known.anew or _age(optimizer) < steps
            known.count = 0 if known.anew else known.count
        if weight in known.left and not known.anew:
            known.left.discard(weight)
            if not known.left:
                known.count += 1
                known.location = calling_place()

    def facts(self) -> Iterator[LoopFact]:
        """Yield a fact for each optimizer all of whose weights were drawn again."""
        for use, known in self._counted:
            if known.count:
                yield LoopFact(
                    "redrawn", use.name, count=known.count,
                    figures=(float(len(known.weights)), float(use.parameters.steps)),
                    location=known.location,
                )  # fmt: skip


def _age(optimizer: Optimizer) -> float:
    """Return the number of steps in the state of an optimizer; infinity if it does not count."""
    state = next(iter(optimizer.state.values()), None)
    steps = state.get("step") if type(state) is dict else None
    return float(steps) if isinstance(steps, int | float | torch.Tensor) else math.inf


def _weight(tensor: object) -> _Weight | None:
    """Return where a dense tensor with two axes or more lies; None for any other object."""
    if not isinstance(tensor, torch.Tensor) or type(tensor) not in PLAIN:
        return None
    if tensor.is_meta or tensor.layout != torch.strided or tensor.dim() < 2 or not tensor.numel():
        return None
    return tensor.data_ptr(), tuple(tensor.shape)
