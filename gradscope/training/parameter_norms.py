"""Makes records of the norms of a step's gradients, and at some steps of the weights, for each
model."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from gradscope.capture.names import named_parameters
from gradscope.records.tensors import NONE, VALUES_EVERY, NormNames, ParameterNorms, packed
from gradscope.records.training import TrainedModel
from gradscope.training.current_step import CurrentStep, Norms
from gradscope.training.models import Models
from gradscope.training.optimizers import ObservedOptimizer

#: The most models with norms, for a script that makes models again and again.
_MOST = 1000
Record = TrainedModel | NormNames | ParameterNorms


@dataclass(slots=True)
class _Names:
    """The parameters of one model that one optimizer holds, and how often they were recorded."""

    record: NormNames
    rows: int = 0
    written: bool = False

    @property
    def with_values(self) -> bool:
        """True if the next row has the norms of the parameters themselves."""
        return (self.rows + 1) % VALUES_EVERY == 0 or not self.rows


@dataclass(slots=True)
class _Held:
    """Parameters of an optimizer by model, valid while it holds the same ones."""

    held: frozenset[nn.Parameter]
    models: list[int]
    parts: list[tuple[_Names, list[nn.Parameter]]]


class ParameterNormRecords:
    """Makes the records of each step whose gradients were read.

    To name parameters takes a walk through their models, so the names are kept until an optimizer
    or the models change.
    """

    def __init__(self, models: Models) -> None:
        self._models = models
        self._names: dict[tuple[int, tuple[str, ...]], _Names] = {}
        self._of: weakref.WeakKeyDictionary[ObservedOptimizer, _Held] = weakref.WeakKeyDictionary()

    def gradients_ready(self, known: ObservedOptimizer | None, current: CurrentStep) -> None:
        """Also read the weights before the update, at the steps chosen for that."""
        for names, parameters in self._parts(known, current):
            if names.with_values:
                current.measure_values(parameters)

    def records(
        self, step: int, known: ObservedOptimizer | None, current: CurrentStep
    ) -> Iterator[Record]:
        """Yield the norms of an ended step, with names and models that are not recorded yet."""
        got, left = current.got, current.left
        if not got:
            return
        scale = (current.scale or 1.0) if left else 1.0
        for names, parameters in self._parts(known, current):
            now = [got.get(p, NONE) for p in parameters]
            if now.count(NONE) == len(now):
                continue
            clipped = packed(now)
            gradient: bytes | None = clipped
            if left is None:
                gradient = None
            elif left is not got or scale != 1.0:
                gradient = packed(_unscaled(parameters, now, left, scale))
            values = None
            if names.with_values and current.values:
                values = packed([current.values.get(p, NONE) for p in parameters])
            if not names.written:
                names.written = True
                yield from self._news(names.record.model, step)
                yield names.record
            names.rows += 1
            yield ParameterNorms(
                *(step, names.record.id, names.rows, gradient),
                clipped=None if clipped == gradient else clipped,
                value=values,
            )

    def _news(self, number: int, step: int) -> Iterator[TrainedModel]:
        for model in self._models:
            if model.id == number:
                self._models.name(model)
                news = model.news(step)
                if news is not None:
                    yield news

    def _parts(
        self, known: ObservedOptimizer | None, current: CurrentStep
    ) -> list[tuple[_Names, list[nn.Parameter]]]:
        """Return the models' parameters that an optimizer holds; without an optimizer, those with a
        gradient."""
        if known is None:
            return self._found(frozenset(current.got or ()))
        models = [model.id for model in self._models]
        seen = self._of.get(known)
        if seen is None or seen.held is not known.held or seen.models != models:
            seen = self._of[known] = _Held(known.held, models, self._found(known.held))
        return seen.parts

    def _found(self, held: frozenset[nn.Parameter]) -> list[tuple[_Names, list[nn.Parameter]]]:
        parts = []
        for model in self._models:
            mine = {p: n.name for p, n in named_parameters(model.module).items() if p in held}
            key = model.id, tuple(mine.values())
            if mine and (key in self._names or len(self._names) < _MOST):
                record = NormNames(len(self._names) + 1, *key)
                parts.append((self._names.setdefault(key, _Names(record)), list(mine)))
        return parts


def _unscaled(
    parameters: list[nn.Parameter], now: list[float], left: Norms, scale: float
) -> list[float]:
    """Return the norms after backward, without the loss scale; if these were not read, the present
    ones."""
    pairs = zip([left.get(p) for p in parameters], now, strict=True)
    return [norm if before is None else before / scale for before, norm in pairs]
