"""Ranges of steps: both ends included, in order, without overlap."""

from __future__ import annotations

from bisect import bisect_left

#: Above this many the two that are nearest to each other become one.
MOST = 100


class StepRanges:
    """A set of steps that only grows."""

    __slots__ = ("_firsts", "_lasts")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []

    def add(self, first: int, last: int) -> bool:
        """Add the steps from one to the other; return True if there is a new range."""
        firsts, lasts = self._firsts, self._lasts
        low = bisect_left(lasts, first - 1)  # the first that reaches it
        high = low
        while high < len(firsts) and firsts[high] <= last + 1:
            first, last = min(first, firsts[high]), max(last, lasts[high])
            high += 1
        firsts[low:high], lasts[low:high] = [first], [last]
        if len(firsts) > MOST:
            near = min(range(1, len(firsts)), key=lambda i: firsts[i] - lasts[i - 1])
            del firsts[near], lasts[near - 1]
        return low == high

    @property
    def count(self) -> int:
        """Number of steps in the ranges."""
        return sum(self._lasts) - sum(self._firsts) + len(self._firsts)

    def all(self) -> tuple[tuple[int, int], ...]:
        """The ranges in order."""
        return tuple(zip(self._firsts, self._lasts, strict=True))
