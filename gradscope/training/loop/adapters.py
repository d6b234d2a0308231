"""Finds low-rank adapters that are frozen in their initial state, with a second factor of zeros."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import nn

from gradscope.capture.names import named_parameters
from gradscope.capture.shards import is_spread
from gradscope.records.loop_figures import FrozenAdapters
from gradscope.training.loop.script_lines import written_in_main
from gradscope.training.models import Model

#: A line that freezes.
_FREEZES = r"\.requires_grad\s*=[^=]|\.requires_grad_\("
#: The names of a pair differ in this many of their last parts at most.
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
                line = written_in_main(_FREEZES) or places(model.id, pairs[0][0])
                yield FrozenAdapters(model.id, len(pairs), pairs[0], training[0], line)


def _pairs(named: dict[str, nn.Parameter]) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield the layer and the names of each frozen pair: a factor, and a factor of zeros."""
    alike: dict[tuple[str, str], list[str]] = {}
    for name, parameter in named.items():
        if parameter.dim() == 2 and not parameter.requires_grad and not is_spread(parameter):
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
