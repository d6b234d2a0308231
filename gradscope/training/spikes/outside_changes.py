"""Changes of an optimizer or of its weights that none of its steps made."""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Collection, Iterator
from itertools import islice
from operator import attrgetter
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from gradscope.capture.measurements import version
from gradscope.records.spike import OutsideChange
from gradscope.rules import AFTERMATH, KEPT

#: Number of changes kept, and of steps in which a second write counts as usual for the script.
_MOST, _OFTEN = 16, 64
#: Settings whose distance to 1 counts, by this factor; of others the value, by that one.
_AVERAGING = ("betas", "alpha", "momentum", "rho")
_PLAIN = ("eps", "weight_decay")
_FACTOR, _PLAIN_FACTOR = 3.0, 10.0
#: Number of parameters of which one value is compared, and of steps with other values that count as
#: usual for the script.
_PROBED, _HABIT = 64, 2
#: A loss scale halves and doubles.
_SCALE_FACTOR = 4.0
#: One value of each of many weights: on the CPU their bytes.
Values = bytes | torch.Tensor
#: The settings of a group that a schedule seldom changes.
_SETTINGS = (*_AVERAGING, *_PLAIN)
#: Kind and layout of a parameter with memory of its own: not sharded, not sparse.
_KINDS, _STRIDED = frozenset({nn.Parameter}), frozenset({torch.strided})
_LAYOUT, _VERSION, _Storage = attrgetter("layout"), attrgetter("_version"), torch.UntypedStorage


class OutsideChanges:
    """Compares an optimizer and its weights with their state after the last step.

    Repeated writes, such as a clamp of the weights after each step, are usual for the script, and
    no change.

    Attributes:
        found: the last changes, in order.
        weights_written: the weights were written to since the last step.
    """

    def __init__(self) -> None:
        self.found: deque[OutsideChange] = deque(maxlen=_MOST)
        self.weights_written = False
        self._given: tuple[Any, ...] | None = None
        self._settings: dict[str, float] = {}
        self._had_state = False
        self._state: dict[str, tuple[int, int]] = {}
        self._weights: tuple[int, int] | None = None
        # Writes through ``.data`` leave the versions as they are: one value of each is compared.
        # The views keep the memory alive, so they are freed at the end of each step. Weights in the
        # CPU's memory need none: a view costs ten times as much as a read of the value.
        self._views: list[torch.Tensor] = []
        self._places: list[tuple[int, int]] = []
        self._values: Values | None = None
        # For each of the last steps: its number, values at the end of the step before, and now.
        self._compared: deque[tuple[int, Values, Values]] = deque(maxlen=AFTERMATH)
        self._written: dict[str, int] = {}  # the step of the last write, by what was written
        self._factor: float | None = None
        self._scaled = True

    def step_begins(self, step: int, optimizer: Optimizer, held: Collection[nn.Parameter]) -> None:
        """Compare with the end of the step before; called before the update."""
        group = optimizer.param_groups[0] if optimizer.param_groups else {}
        given = tuple(map(group.get, _SETTINGS))
        if given != self._given:
            self._compare_settings(step, _numbers(given))
            self._given = given
        if self._had_state and not optimizer.state:
            self.found.append(OutsideChange(step, "state"))
        elif self._state:
            state = _versions_of(optimizer)
            for name, one in self._state.items():
                if state.get(name, one) != one and self._is_rare(step, name):
                    self.found.append(OutsideChange(step, "written", name))
        weights, now = self._weights, _written_of(held)
        self.weights_written = weights is not None and weights != now and self._is_rare(step, "")
        self._views = []
        if self._values is not None and self._in_place(now):
            values = self._read(held)
            if values is not None:
                self._compared.append((step, self._values, values))
                # A comparison of tensors would wait for a GPU.
                if isinstance(values, bytes) and values != self._values:
                    self.weights_written |= step - self._written.get(".data", 0) > _OFTEN
                    self._written[".data"] = step

    def loss_scale_is(self, step: int, factor: float | None, scale: float | None) -> None:
        """Compare the scale of the loss with the scale in the step before.

        Args:
            step: the current one.
            factor: the constant that the script multiplies the loss by; None if unknown.
            scale: the scaler's factor, if the gradients that the optimizer gets still have it.
        """
        if self.is_new_factor(factor):
            self.found.append(OutsideChange(step, "factor", "", self._factor, factor))
        self._factor = factor or self._factor
        if scale is not None and not self._scaled:
            self.found.append(OutsideChange(step, "scaled", "", 1.0, scale))
        self._scaled = scale is not None

    def is_new_factor(self, factor: float | None) -> bool:
        """Return True if the script multiplies the loss by another constant than before."""
        before = self._factor
        return bool(before and factor) and (
            max(before or 0.0, factor or 0.0) > _SCALE_FACTOR * min(before or 0.0, factor or 0.0)
        )

    def weights_moved(self, step: int, since: int, before: float, after: float) -> None:
        """Note the norms of weights that the script wrote to; ``before`` is the norm at step
        ``since``."""
        self.found.append(OutsideChange(step, "weights", "", before, after, since))

    def recent(self, step: int) -> tuple[OutsideChange, ...]:
        """Return the changes in the steps that a step is compared with, in order, writes through
        ``.data`` included.

        Waits for a GPU.
        """
        differ = [number for number, before, now in self._compared if not _are_equal(before, now)]
        known = [one.step for one in self.found if one.kind == "weights"]
        if len(differ) <= _HABIT:
            self.found += [OutsideChange(n, "weights") for n in differ if n not in known]
        found = [one for one in self.found if step - one.step < KEPT]
        return tuple(sorted(found, key=lambda one: one.step))

    def step_ended(self, optimizer: Optimizer, held: Collection[nn.Parameter]) -> None:
        """Note the state after the step."""
        self._had_state = bool(optimizer.state)
        self._state = _versions_of(optimizer)
        now = _written_of(held)
        if now is None:
            self._views, self._places = [], []
        elif not self._in_place(now):
            self._views, self._places = [], _places(held)
        values = None if now is None else self._read(held)
        self._weights, self._values, self._views = now, values, []

    def _read(self, held: Collection[nn.Parameter]) -> Values | None:
        """Return one value of each weight; None if they cannot be read."""
        if self._places:
            return b"".join([ctypes.string_at(*place) for place in self._places])
        self._views = self._views or _one_value_each(held)
        return torch.cat(self._views) if self._views else None

    def _in_place(self, now: tuple[int, int] | None) -> bool:
        """Return True if the same weights are in the same memory as when the last step ended."""
        return self._weights is not None and now is not None and self._weights[1] == now[1]

    def _compare_settings(self, step: int, now: dict[str, float]) -> None:
        for name, value in now.items():
            before = self._settings.get(name, value)
            if value != before and _is_large(name, before, value):
                self.found.append(OutsideChange(step, "setting", name, before, value))
        self._settings = now

    def _is_rare(self, step: int, name: str) -> bool:
        before = self._written.get(name)
        self._written[name] = step
        return before is None or step - before > _OFTEN


def _numbers(given: tuple[Any, ...]) -> dict[str, float]:
    """Return the numbers among a group's settings, by name."""
    found: dict[str, float] = {}
    for name, value in zip(_SETTINGS, given, strict=True):
        if isinstance(value, int | float):
            found[name] = float(value)
        elif isinstance(value, tuple | list):
            found |= {
                f"{name}[{n}]": float(one)
                for n, one in enumerate(value)
                if isinstance(one, int | float)
            }
    return found


def _is_large(name: str, before: float, after: float) -> bool:
    """Return True if a setting changed by more than a schedule changes it in one step."""
    factor = _PLAIN_FACTOR
    if name.partition("[")[0] in _AVERAGING:
        before, after, factor = 1 - before, 1 - after, _FACTOR
    low, high = sorted((abs(before), abs(after)))
    return high > factor * low


def _versions_of(optimizer: Optimizer) -> dict[str, tuple[int, int]]:
    """Return the tensors in the state of the first parameter with a state, each with its
    version."""
    for parameter in optimizer.param_groups[0]["params"][:1] if optimizer.param_groups else ():
        state = optimizer.state.get(parameter)
        if isinstance(state, dict):
            return {
                name: (id(one), version(one))
                for name, one in state.items()
                if isinstance(one, torch.Tensor) and one.dim()
            }
    return {}


def _written_of(held: Collection[nn.Parameter]) -> tuple[int, int] | None:
    """Return the number of writes to the weights, and a hash of their memory; None if a lazy
    module has no weights yet.

    The allocator may give the address of a weight that was freed to a smaller one: of those whose
    values are read the storage counts too. In every step: no frame of Python's for each.
    """
    plain, some = iter(held), _some(held)
    if not (_KINDS.issuperset(map(type, held)) and _STRIDED.issuperset(map(_LAYOUT, held))):
        if any(map(is_lazy, held)):
            return None
        plain, some = filter(_is_plain, plain), filter(_is_plain, some)
    stores = list(map(torch.Tensor.untyped_storage, some))
    addresses, sizes = map(_Storage.data_ptr, stores), map(_Storage.nbytes, stores)
    without = any(map(torch.Tensor.is_inference, held))
    writes = sum(map(version, held) if without else map(_VERSION, held))
    return writes, hash((*map(torch.Tensor.data_ptr, plain), *addresses, *sizes))


def _is_plain(parameter: nn.Parameter) -> bool:
    """Return True for a parameter with memory of its own: not sharded, sparse or nested."""
    plain = type(parameter) is nn.Parameter and parameter.layout == torch.strided
    return plain and not parameter.is_nested


def _some(held: Collection[nn.Parameter]) -> Iterator[nn.Parameter]:
    """Return the parameters of which a value is read."""
    return islice(held, 0, None, 1 + len(held) // (_PROBED + 1))


def _are_equal(before: Values, now: Values) -> bool:
    if isinstance(before, torch.Tensor) and isinstance(now, torch.Tensor):
        return torch.equal(before.nan_to_num(), now.nan_to_num())
    return before == now


def _probed(held: Collection[nn.Parameter]) -> list[tuple[nn.Parameter, int]]:
    """Return parameters, each with the place of its middle value after its first, in elements.

    Empty if a parameter is not a plain tensor in memory, as in a sharded model, or has no values,
    or if they are on several devices.
    """
    found: list[tuple[nn.Parameter, int]] = []
    for p in _some(held):
        if not _is_plain(p) or p.is_meta:
            return []
        middle = sum(n // 2 * one for n, one in zip(p.shape, p.stride(), strict=True))
        end = (p.storage_offset() + middle + 1) * p.element_size()
        if end > p.untyped_storage().nbytes() or (found and p.device != found[0][0].device):
            return []
        found.append((p, middle))
    return found


def _one_value_each(held: Collection[nn.Parameter]) -> list[torch.Tensor]:
    """Return views of one value of each parameter."""
    return [
        p.detach().as_strided((1,), (1,), p.storage_offset() + middle)
        for p, middle in _probed(held)
    ]


def _places(held: Collection[nn.Parameter]) -> list[tuple[int, int]]:
    """Return the address and the bytes of one value of each parameter; empty unless all are in the
    CPU's memory."""
    return [
        (p.data_ptr() + middle * p.element_size(), p.element_size())
        for p, middle in _probed(held)
        if p.is_cpu
    ]
