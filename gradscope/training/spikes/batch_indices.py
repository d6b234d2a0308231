"""Finds the dataset indices of the batches that data loaders returned last."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

#: Number of batches that workers draw ahead, kept for one iterator.
_BATCHES = 512


class BatchIndices:
    """Follows the iterator that drew the last batch, because validation has another iterator.

    A loader that overrides ``__iter__`` may hold batches back, as accelerate's does: the indices
    of its batches are not known.
    """

    def __init__(self) -> None:
        self._latest: weakref.ref[_BaseDataLoaderIter] | None = None
        self._drawn: weakref.WeakKeyDictionary[_BaseDataLoaderIter, deque[Any]] = (
            weakref.WeakKeyDictionary()
        )
        self._counts: weakref.WeakKeyDictionary[_BaseDataLoaderIter, int] = (
            weakref.WeakKeyDictionary()
        )
        self._plain = True

    def epoch_begins(self, loader: DataLoader[Any]) -> None:
        """Note that a new iteration over a loader begins."""
        again = loader._iterator  # of workers that stay: it draws anew
        if again is not None:
            self._drawn.pop(again, None)
        self._plain = getattr(type(loader).__iter__, "__wrapped__", None) is not None

    def drawn(self, iterator: _BaseDataLoaderIter, indices: Any) -> None:
        """Note that an iterator drew the indices of its next batch; with workers, several batches
        ahead."""
        drawn = self._drawn.get(iterator)
        if drawn is None:
            drawn = self._drawn[iterator] = deque(maxlen=_BATCHES)
            self._counts[iterator] = 0
        drawn.append(indices)
        self._counts[iterator] += 1
        self._latest = weakref.ref(iterator)

    def of_calls(self, counts: Sequence[int | None], backwards: int) -> list[list[int] | None]:
        """Return the dataset indices of the samples of each call in a step; None if unknown.

        Three cases: the calls share a batch; each call has a batch and a backward; or all calls
        have the same batch, as in a siamese network.

        Args:
            counts: the number of samples of each call.
            backwards: the number of backwards in the step.
        """
        (latest,) = self.last(1)
        sizes = [one or 0 for one in counts]
        if latest is not None and len(latest) == sum(sizes):
            ends = list(accumulate(sizes))
            return [latest[end - size : end] for end, size in zip(ends, sizes, strict=True)]
        if backwards == len(counts):
            return self.last(len(counts))
        return [latest] * len(counts)

    def last(self, batches: int) -> list[list[int] | None]:
        """Return the dataset indices of the script's last batches, in order; None if unknown."""
        iterator = None if self._latest is None else self._latest()
        unknown: list[list[int] | None] = [None] * batches
        drawn = None if iterator is None else self._drawn.get(iterator)
        if iterator is None or drawn is None or not self._plain:
            return unknown
        first = self._counts[iterator] - len(drawn)
        given = range(iterator._num_yielded - batches, iterator._num_yielded)
        return [
            _numbers(drawn[n - first]) if first <= n < self._counts[iterator] else None
            for n in given
        ]


def _numbers(indices: Any) -> list[int] | None:
    """Return the indices as numbers; for a stream, None for each."""
    try:
        return [int(one) for one in indices]
    except (TypeError, ValueError):
        return None
