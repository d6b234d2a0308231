"""Passes some events of a loop to parts that need them besides the loop's record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from gradscope.training.steps import Parts


class LoopEvents:
    """Handles some events of ``loop.patches.LoopObserver``; the loop itself handles the others.

    Args:
        parts: the loop, the current step and the spikes get events.
        search: searches for models if a module was set.
    """

    def __init__(self, parts: Parts, search: Callable[[], None]) -> None:
        self._loop, self._optimizers, self._current = parts.loop, parts.optimizers, parts.current
        self._indices = None if parts.spikes is None else parts.spikes.indices
        self._search = search

    def clearing(self) -> None:
        """Note that ``zero_grad`` is about to clear gradients."""
        self._search()
        self._loop.clearing()

    def clipping(self, parameters: Sequence[torch.Tensor], by_norm: bool) -> None:
        """Note that these parameters' gradients are about to be clipped."""
        if by_norm:
            self._current.gradients.multiplied(parameters, 1)

    def unscaled(self, optimizer: Optimizer) -> None:
        """Note that a gradient scaler divided an optimizer's gradients."""
        known = self._optimizers.known(optimizer)
        known.is_unscaled = True
        self._current.gradients.multiplied(known.held, 0)
        self._loop.unscaled(optimizer)

    def epoch_begins(self, loader: DataLoader[Any]) -> None:
        """Note the start of an iteration over a data loader."""
        self._loop.epoch_begins(loader)
        if self._indices is not None:
            self._indices.epoch_begins(loader)

    def batch_drawn(self, iterator: Any, indices: Any) -> None:
        """Note that a data loader's iterator drew the indices of a batch."""
        self._loop.batch_drawn(iterator)
        if self._indices is not None:
            self._indices.drawn(iterator, indices)
