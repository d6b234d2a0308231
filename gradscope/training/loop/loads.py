"""Finds loads of a model's earlier weights during training, which undo its steps."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass

from torch import nn
from torch.optim import Optimizer

from gradscope.records.loop import EmptyLoad
from gradscope.training.loop.model_uses import digest
from gradscope.training.loop.optimizer_uses import OptimizerUses
from gradscope.training.loop.script_lines import script_line

#: Number of empty loads that are kept.
_MOST = 8


@dataclass(slots=True)
class Undone:
    """The loads of one model: the state after the last one, and the number of loads that restored
    it after optimizer steps.
    """

    digest: str
    optimizer: weakref.ref[Optimizer]
    state: int  # the id of its state, which is another one when it is loaded, too
    steps: int
    count: int = 0
    varies: bool = False
    location: str | None = None


class Loads:
    """Records the script's calls of ``load_state_dict``."""

    def __init__(self, uses: OptimizerUses) -> None:
        self._uses = uses
        self._of: dict[int, Undone] = {}
        #: The calls that loaded nothing.
        self.empty: list[EmptyLoad] = []

    def loaded(self, number: int, module: nn.Module, others: Iterable[nn.Module]) -> None:
        """Note a model with loaded weights; only another model's weights count: its own are
        restored on purpose.
        """
        mine = {id(parameter) for parameter in module.parameters()}
        for optimizer, use in self._uses:
            held = (id(p) for group in optimizer.param_groups for p in group["params"])
            if not use.parameters.steps or not any(one in mine for one in held):
                continue
            now, steps = digest(module), use.parameters.steps
            if not any(digest(other) == now for other in others):
                self._of.pop(number, None)
                return
            before = self._of.get(number)
            state = id(optimizer.state)
            if before is None or before.optimizer() is not optimizer or before.state != state:
                self._of[number] = Undone(now, weakref.ref(optimizer), state, steps)
            elif before.digest != now:
                before.varies, before.count = True, 0  # somebody kept what was learned
            elif steps > before.steps and not before.varies:
                before.steps = steps
                before.count += 1
                if before.location is None:
                    line = script_line()
                    before.location = None if line is None else str(line)

    def matched(self, module: nn.Module, result: object) -> None:
        """Note the result of ``load_state_dict``: the keys that did not match."""
        missing, unexpected = (
            tuple(getattr(result, name, ())) for name in ("missing_keys", "unexpected_keys")
        )
        own = sum(1 for _ in module.parameters())
        if unexpected and own and len(missing) >= own and len(self.empty) < _MOST:
            line = script_line()
            self.empty.append(
                EmptyLoad(
                    type(module).__name__, len(missing), len(unexpected),
                    (missing[0], unexpected[0]), None if line is None else str(line),
                )
            )  # fmt: skip

    def undone(self, number: int) -> tuple[int, str | None]:
        """Return how often a model's training was undone, and the line."""
        found = self._of.get(number)
        return (found.count, found.location) if found is not None else (0, None)
