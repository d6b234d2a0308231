"""Finds loads that undo a training's steps, or leave out the state of an optimizer."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from gradscope.records.loop import EmptyLoad, LeftState
from gradscope.training.loop.model_uses import digest
from gradscope.training.loop.optimizer_uses import OptimizerUses
from gradscope.training.loop.script_lines import script_line, script_place

#: The most checkpoints noted, and the depth to which their dictionaries are searched.
_OF_CHECKPOINT, _DEPTH = 8, 3

#: Names and shapes of tensors.
_Shapes = frozenset[tuple[str, tuple[int, ...]]]


@dataclass(slots=True)
class _Checkpoint:
    """Contents of a checkpoint file, without its tensors."""

    weights: list[_Shapes]
    #: For the state of each optimizer: its groups, and the number of parameters with a state.
    states: list[tuple[list[dict[str, Any]], int]]
    location: str | None
    loaded: bool = False


class Checkpoints:
    """Finds states of optimizers that a script reads from files and does not load.

    Args:
        uses: the optimizers of the training.
    """

    def __init__(self, uses: OptimizerUses) -> None:
        self._uses = uses
        self._read: list[_Checkpoint] = []
        self._any_loaded = False

    def read(self, data: object) -> None:
        """Note a result of ``torch.load``."""
        if self._any_loaded or not isinstance(data, Mapping) or len(self._read) == _OF_CHECKPOINT:
            return
        found = list(_mappings(data, _DEPTH))
        states = [
            ([_plain(group) for group in one["param_groups"]], len(one["state"]))
            for one in found
            if _is_state(one) and one["state"]
        ]
        weights = [shapes for one in found if (shapes := _shapes(one))]
        if states and weights:
            self._read.append(_Checkpoint(weights, states, script_place()))

    def loaded(self, module: nn.Module) -> None:
        """Note a ``load_state_dict`` of a module."""
        waiting = [one for one in self._read if not one.loaded]
        if waiting:
            own = _shapes(module.state_dict())
            for one in waiting:
                one.loaded = own in one.weights

    def optimizer_loaded(self) -> None:
        """Note a ``load_state_dict`` of an optimizer."""
        self._any_loaded = True
        self._read.clear()

    def left(self) -> Iterator[LeftState]:
        """Yield states that fit an optimizer of the script, from checkpoints whose weights were
        loaded."""
        for checkpoint in self._read if not self._any_loaded else ():
            for groups, count in checkpoint.states if checkpoint.loaded else ():
                for optimizer, use in self._uses:
                    if use.parameters.steps and _fits(groups, optimizer):
                        yield LeftState(use.name, count, checkpoint.location)
                        break


def _mappings(data: Mapping[Any, Any], depth: int) -> Iterator[Mapping[Any, Any]]:
    """Yield a dictionary and the dictionaries in it, down to a depth; not those in an optimizer's
    state."""
    yield data
    if depth and not _is_state(data):
        for value in data.values():
            if isinstance(value, Mapping):
                yield from _mappings(value, depth - 1)


def _is_state(data: Mapping[Any, Any]) -> bool:
    """Return whether ``Optimizer.state_dict`` made the value."""
    groups = data.get("param_groups")
    return (
        isinstance(data.get("state"), Mapping)
        and isinstance(groups, list)
        and all(isinstance(group, Mapping) and "params" in group for group in groups)
    )


def _shapes(data: Mapping[Any, Any]) -> _Shapes:
    """Return the names and shapes of the tensors of a module's state; empty for anything else."""
    return frozenset(
        (str(name), tuple(value.shape))
        for name, value in data.items()
        if isinstance(value, torch.Tensor)
    )


def _plain(group: Mapping[Any, Any]) -> dict[str, Any]:
    """Return a group's settings, and its number of parameters."""
    kinds = (bool, int, float, tuple)
    plain = {str(k): v for k, v in group.items() if k != "params" and isinstance(v, kinds)}
    return {**plain, "params": len(group["params"])}


def _fits(groups: Sequence[Mapping[str, Any]], optimizer: Optimizer) -> bool:
    """Return whether a saved state fits an optimizer: its groups and its initial settings.

    A script that loads only the weights, to train them for another task, has other settings.
    """
    if len(groups) != len(optimizer.param_groups):
        return False
    for saved, own in zip(groups, optimizer.param_groups, strict=True):
        if saved["params"] != len(own["params"]):
            return False
        now = _plain(own)
        if set(saved) - {"initial_lr"} != set(now) - {"initial_lr"}:
            return False
        if any(
            saved[key] != now[key]
            for key in now
            if key in saved and key not in ("lr", "initial_lr")
        ):
            return False
        if saved.get("initial_lr", saved.get("lr")) != now.get("initial_lr", now.get("lr")):
            return False
    return True


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
                    before.location = script_place()

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
