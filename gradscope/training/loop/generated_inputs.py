"""Finds calls of a model with the output of another model, as of a discriminator on fakes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from gradscope.capture.shards import PLAIN
from gradscope.nesting import find

#: Number of results that are remembered.
_RESULTS = 16
#: After this many calls of one model there is no other one.
_ALONE = 64


class GeneratedInputs:
    """Remembers the results of each model, and finds them among the inputs of another.

    A detached tensor shares its storage with the result.
    """

    def __init__(self) -> None:
        self._results: deque[tuple[StorageWeakRef, int]] = deque(maxlen=_RESULTS)
        self._models: set[int] = set()
        self._calls = 0

    @property
    def several(self) -> bool:
        """True if several models were called."""
        return len(self._models) > 1

    def called(self, model: int, given: object) -> bool:
        """Return True if a model's call gets a result of another model."""
        self._models.add(model)
        self._calls += 1
        if not self.several:  # in every step of most scripts
            return False
        inputs = set(_storages(given))
        return any(result in inputs and by != model for result, by in self._results)

    def returned(self, model: int, output: object) -> None:
        """Note the results of a model's call."""
        if self.several or self._calls < _ALONE:
            self._results.extend((one, model) for one in _storages(output))


def _storages(data: object) -> Iterator[StorageWeakRef]:
    for _, tensor in find(data, torch.Tensor):
        if tensor.layout == torch.strided and type(tensor) in PLAIN:
            yield StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
