"""Detects a loop that gives the models the same batch at every call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from gradscope.capture.differences import fingerprints
from gradscope.capture.remembered import remembered
from gradscope.nesting import find


class Batches:
    """Compares the inputs of each call with the first one's, until they differ.

    Attributes:
        same: the number of calls with equal numbers, of models that were called again; 0 after the
            first difference.
        differ: True if a call got other numbers.
        same_tensor: True if it was the same memory each time, and not a small part of a larger
            tensor, as in training on the full data set.
    """

    def __init__(self) -> None:
        self.same = 0
        self.same_tensor = True
        self.differ = False
        self._first: dict[int, tuple[str, ...]] = {}  # by model
        self._calls = Counter[int]()
        self._parts: dict[int, _Part] = {}

    def called(self, model: int, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Note the inputs of a model's call with gradients."""
        if self.differ:
            return
        given = [tensor for _, tensor in find((args, kwargs), torch.Tensor)]
        # What hangs on a graph is another model's output: it changes as that one trains.
        if not given or any(tensor.grad_fn is not None for tensor in given):
            return
        digest = tuple(fingerprints(given))
        again = model in self._first
        first = self._first.setdefault(model, digest)
        if first != digest:
            self.differ, self.same = True, 0
            self._first.clear()
            self._parts.clear()
            return
        known = self._parts.setdefault(model, _Part(given[0]))
        self.same_tensor = self.same_tensor and known.is_most() and known.is_same(given[0])
        self._calls[model] += 1
        # A model that is called once, as a copy for each task, says nothing.
        self.same += 0 if not again else 2 if self._calls[model] == 2 else 1


class _Part:
    """A tensor or a view, identified by its base tensor: addresses are soon reused."""

    def __init__(self, tensor: torch.Tensor) -> None:
        base = tensor if tensor._base is None else tensor._base
        self._base, self._elements = remembered(base), tensor.numel()
        self._place = _place(tensor)

    def is_same(self, tensor: torch.Tensor) -> bool:
        """Return True if another tensor is the same part of the same base."""
        base = tensor if tensor._base is None else tensor._base
        return self._base() is base and _place(tensor) == self._place

    def is_most(self) -> bool:
        """Return True if the part is at least half of its base."""
        base = self._base()
        return base is not None and base.numel() <= 2 * self._elements


def _place(tensor: torch.Tensor) -> object:
    plain = tensor.layout == torch.strided and not tensor.is_nested
    where = (tensor.storage_offset(), tensor.stride()) if plain else ()
    return tuple(tensor.shape) if plain else (), where
