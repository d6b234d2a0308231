"""Finds weights that training cannot change: frozen adapters of zeros, units that are all equal."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from gradscope.capture.names import named_parameters
from gradscope.capture.remembered import RememberedTensor, remembered
from gradscope.capture.shards import is_spread
from gradscope.records.loop_figures import EqualUnits, FrozenAdapters, LoopFact
from gradscope.training.loop.script_lines import freezing_line, script_place
from gradscope.training.models import Model, Models

#: The names of a pair differ in at most this many of their last parts.
_PARTS = 3


class Adapters:
    """Searches for adapters in the second sample, and checks whether they are still frozen."""

    def __init__(self) -> None:
        self._of: dict[int, list[tuple[str, tuple[str, str]]]] = {}

    def read(self, models: Iterable[Model]) -> None:
        """Read the weights in a sampled step."""
        for model in models:
            if model.id not in self._of:
                named = {one.name: p for p, one in named_parameters(model.module).items()}
                self._of[model.id] = list(_pairs(named))

    def records(
        self, models: Iterable[Model], places: Callable[[int, str], str | None]
    ) -> Iterator[FrozenAdapters]:
        """Yield a record for each partly trained model without a trained adapter."""
        for model in models:
            known = self._of.get(model.id)
            if not known:
                continue
            training = [
                one.name for p, one in named_parameters(model.module).items() if p.requires_grad
            ]
            # Beside an adapter that trains, others of the layer may wait on purpose.
            pairs = [
                pair
                for scope, pair in known
                if not any(name.startswith(scope) for name in training)
            ]
            if training and pairs:
                line = freezing_line() or places(model.id, pairs[0][0])
                yield FrozenAdapters(model.id, len(pairs), pairs[0], training[0], line)


def _pairs(named: dict[str, nn.Parameter]) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield the layer and the names of each frozen pair: a factor, and a factor of zeros."""
    alike: dict[tuple[str, str], list[str]] = {}
    for name, parameter in named.items():
        frozen = not (is_lazy(parameter) or parameter.requires_grad or is_spread(parameter))
        if frozen and parameter.dim() == 2:
            parts = name.split(".")
            for place in range(max(0, len(parts) - _PARTS), len(parts)):
                scope = "".join(f"{part}." for part in parts[:place])
                alike.setdefault((scope, ".".join(parts[place + 1 :])), []).append(name)
    for (scope, _), names in alike.items():
        for name in names:
            other = next((one for one in names if _fit(named[one], named[name])), None)
            if other is not None:
                yield scope, (other, name)


def _fit(first: torch.Tensor, zero: torch.Tensor) -> bool:
    """Return True if the product of the two is a matrix of low rank, and is zero."""
    (wide, rank), (inner, narrow) = zero.shape, first.shape
    if inner != rank or 2 * rank > min(wide, narrow) or first is zero or zero.is_meta:
        return False
    return not bool(zero.detach().any())


class _Known:
    """One weight."""

    def __init__(self, row: torch.Tensor) -> None:
        self.first, self.units = row.detach().clone(), 0
        self.readings, self.moved = 0, False


class EqualWeights:
    """Compares the rows of each weight with two axes or more, up to the first difference.

    For almost all weights, two rows of the first reading are enough.
    """

    def __init__(self) -> None:
        self._equal: dict[tuple[int, str], _Known] = {}
        self._zeros: dict[tuple[int, str], int] = {}
        self._done: set[tuple[int, str]] = set()
        self._filled: dict[int, str] = {}

    def filled(self, tensor: torch.Tensor, line: str | None) -> None:
        """Note a tensor that ``torch.nn.init`` filled with one number, and the line."""
        if line is not None:
            self._filled[id(tensor)] = line

    def read(self, models: Iterable[Model]) -> None:
        """Read the weights in a sampled step, before the update."""
        for model in models:
            for parameter, named in named_parameters(model.module).items():
                key = model.id, named.name
                lazy = is_lazy(parameter)  # its layer may be called later
                if key not in self._done and parameter.requires_grad and not lazy:
                    self._read(key, parameter)

    def _read(self, key: tuple[int, str], parameter: nn.Parameter) -> None:
        rows = parameter.detach()
        known = self._equal.get(key)
        if not _has_rows(rows) or not torch.equal(rows[0], rows[1]) or _differ(rows):
            self._done.add(key)
            self._equal.pop(key, None)
            self._zeros.pop(key, None)
        elif not rows.any():
            # Many begin so on purpose. It is a fault only if the gradient stays zero, too.
            self._zeros[key] = self._zeros.get(key, 0) + 1
        elif known is None:
            self._zeros.pop(key, None)
            known = self._equal[key] = _Known(rows[0])
            known.units, known.readings = len(rows), 1
        else:
            known.readings += 1
            known.moved = known.moved or not torch.equal(known.first, rows[0])

    def records(self, models: Iterable[Model]) -> Iterator[EqualUnits]:
        """Yield the weights whose rows were equal in all readings, though they have moved, and
        those that were zero in all readings."""
        for model in models:
            places: Callable[[str], str | None] = self._places(model.module)
            for (number, name), one in self._equal.items():
                if number == model.id and one.moved:
                    yield EqualUnits(number, name, one.units, one.readings, places(name))
            for (number, name), readings in self._zeros.items():
                if number == model.id:
                    yield EqualUnits(number, name, 0, readings, places(name))

    def _places(self, module: nn.Module) -> Callable[[str], str | None]:
        ids = {named.name: id(one) for one, named in named_parameters(module).items()}
        return lambda name: self._filled.get(ids.get(name, 0))


#: A weight whose deviation is below this share of Kaiming's loses most of the signal.
_SMALL = 1 / 3
#: Number of a weight's entries to read.
_ENTRIES = 4096


class SmallStarts:
    """Notes weights that ``torch.nn.init`` sets to normal numbers which are much too small."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[RememberedTensor, str, float, float]] = {}

    def drawn(self, tensor: torch.Tensor, *, normal: bool) -> None:
        """Note a tensor with new numbers; those of a ``normal`` function have a given deviation."""
        self._known.pop(id(tensor), None)
        rows = tensor.detach()
        if not normal or not _has_rows(rows) or not rows.is_floating_point():
            return
        some = rows[: 1 + _ENTRIES // rows[0].numel()].double()
        deviation, usual = float(some.std()), math.sqrt(2 / rows[0].numel())
        line = script_place() if 0 < deviation < _SMALL * usual else None
        if line is not None:
            self._known[id(tensor)] = remembered(tensor), line, deviation, usual

    def facts(self, models: Models) -> Iterator[LoopFact]:
        """Yield a fact for each model and line, with the modules that own the weights."""
        for model in models if self._known else ():
            found: dict[str, list[tuple[str, float, float]]] = {}
            for parameter, named in named_parameters(model.module).items():
                known = self._known.get(id(parameter))
                if known is not None and known[0]() is parameter:
                    _, line, deviation, usual = known
                    owner = named.name.rpartition(".")[0]
                    found.setdefault(line, []).append((owner, deviation, usual))
            for line, weights in found.items():
                _, *middle = weights[len(weights) // 2]  # the first layer is often of another size
                yield LoopFact(
                    "small-start", model=models.name(model), count=len(weights),
                    words=tuple(name for name, *_ in weights), figures=tuple(middle), location=line,
                )  # fmt: skip


def _has_rows(tensor: torch.Tensor) -> bool:
    plain = not tensor.is_meta and tensor.layout == torch.strided and type(tensor) is torch.Tensor
    return (
        plain
        and not tensor.is_nested
        and tensor.dim() > 1
        and tensor.shape[0] > 1
        and tensor.numel() > 0
    )


def _differ(rows: torch.Tensor) -> bool:
    return not bool((rows == rows[:1]).all())
