"""Makes records of the norms of a step's gradients: for each parameter, at some steps with the
weights' norms; and over parts of a sampled step's batch, its micro-batches or the ranks.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge

from gradscope.capture.hooks import Handle, hook_node_before
from gradscope.capture.names import named_parameters
from gradscope.records.tensors import (
    NONE,
    VALUES_EVERY,
    NormNames,
    ParameterNorms,
    finite_or_none,
    packed,
)
from gradscope.records.training import GradientParts, TrainedModel
from gradscope.training.current_step import CurrentStep, Norms
from gradscope.training.guard import Guard
from gradscope.training.models import Model, Models
from gradscope.training.nan_detector.recorded_calls import RecordedCall
from gradscope.training.optimizers import ObservedOptimizer
from gradscope.training.replicas import batch_size, ddp_around

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


def micro_batches(
    current: CurrentStep, calls: Iterable[RecordedCall], held: Collection[nn.Parameter]
) -> GradientParts | None:
    """Return the parts of a step whose backwards add up the gradients of micro-batches.

    None if they may be something else: other losses, other models, or batches of other sizes. Each
    call of a micro-batch has its backward; the caller knows that all come from one line.
    """
    sums = current.sums
    if len(sums) < 2 or len(sums) != len(current.losses) or current.summed is not None:
        return None
    if current.divisor != 1.0 or not current.gradients.norms.keys() <= set(held):
        return None
    found = [call for call in calls if call.returned and call.arrived]
    made = {
        (call.module, batch_size(call.args, call.kwargs), len(backwards))
        for call in found
        for backwards in call.nodes.values()
    }
    if len(found) != len(sums) or len(made) != 1:
        return None
    _, size, backwards = made.pop()
    if not size or backwards != 1 or not all(map(math.isfinite, sums)):
        return None
    return GradientParts(size, sums=tuple(one / (current.scale or 1.0) for one in sums))


class LocalNorms:
    """The norm of this rank's own gradient in one step, before DDP averages it over the ranks.

    Args:
        models: the step's models; without DDP around them, nothing is read.
        guard: makes functions of the hooks that never raise.
    """

    def __init__(self, models: Sequence[Model], guard: Guard) -> None:
        self._squares: dict[nn.Parameter, list[torch.Tensor]] = {}
        self._hooks: list[Handle] = []
        self._nodes = []
        for model in models:
            outer = model.outer()
            if outer is None or ddp_around(outer) is None:
                continue
            for parameter in model.module.parameters():
                if parameter.requires_grad:
                    squares = self._squares[parameter] = []
                    node = get_gradient_edge(parameter).node
                    self._nodes.append(node)  # which PyTorch holds weakly
                    self._hooks.append(hook_node_before(node, guard(_adding(squares))))

    def parts(self, current: CurrentStep, held: Collection[nn.Parameter]) -> GradientParts | None:
        """Return the part of this rank, after one backward; None if there were several."""
        several = [squares for p, squares in self._squares.items() if p in held and squares]
        if not several or any(len(squares) > 1 for squares in several) or not current.batch:
            return None
        if len(current.losses) != 1:
            return None
        total = sum(float(square) for squares in several for square in squares)
        norm = finite_or_none(math.sqrt(total) / (current.scale or 1.0))
        return None if norm is None else GradientParts(current.batch, ranks=(norm,))

    def remove(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._nodes, self._squares = [], [], {}


def _adding(squares: list[torch.Tensor]) -> Callable[[Sequence[torch.Tensor | None]], None]:
    """Return a hook that adds the square of a gradient's norm to a list."""

    def add(gradients: Sequence[torch.Tensor | None]) -> None:
        gradient = gradients[0]
        if gradient is not None and gradient.layout == torch.strided:
            norm = torch.linalg.vector_norm(gradient.detach(), dtype=torch.float64)
            squares.append(norm.square())

    return add
