"""Which steps are looked at: as many as the budget pays for, and how much that cost in the end."""

from __future__ import annotations

import math
import statistics
from collections import deque
from dataclasses import dataclass, field

#: How many of the latest steps of a kind the medians are taken over.
_LATEST = 64


@dataclass(slots=True)
class Interval:
    """Says before each step whether it is looked at.

    The first steps are. After them either every so many, or whenever the time that has passed
    allows for one more: what looking took so far, and what one more is expected to take, stays
    within the budget's share of the whole, of which the vital signs of all steps may use up half.

    Of several processes each looks at the multiples of a power of two that half of the budget pays
    for, so that they look at the same steps without a word, or the faster ones at more.

    Attributes:
        first: how many steps are looked at in any case.
        every: the fixed interval, None where there is a budget.
        budget: the share of the time that looking may take.
        processes: how many train together.
    """

    first: int = 3
    every: int | None = None
    budget: float = 0.02
    processes: int = 1
    number: int = 0
    looks: float = 0.0  # seconds that were spent on them
    signs: float = 0.0  # and on the steps that were not looked at
    elapsed: float = 0.0
    latest: int | None = None  # the steps between the last two that were looked at
    _last: int = 0
    _plain: deque[float] = field(default_factory=lambda: deque(maxlen=_LATEST))
    _watched: deque[float] = field(default_factory=lambda: deque(maxlen=_LATEST))
    _own: deque[float] = field(default_factory=lambda: deque(maxlen=_LATEST))
    _unpriced: int = 0  # steps that were looked at before it was known what a plain one takes
    _cost: float = 0.0  # of one look, as it was known last: medians take longer than a small step
    _stride: int = 1  # of several processes

    def wants(self) -> bool:
        """Whether the step that comes next is to be looked at."""
        upcoming = self.number + 1
        if upcoming <= self.first:
            return True
        if self.every is not None:
            return upcoming % self.every == 0
        if not self._plain:  # what a plain step takes is not known yet
            return False
        if self.processes > 1:
            return upcoming % self._stride == 0
        paid = self.budget * self.elapsed
        return self.looks + self._cost <= paid - min(self.signs, paid / 2)

    def ended(self, seconds: float, *, watched: bool, own: float) -> None:
        """A step has ended.

        Args:
            seconds: since the step before it ended.
            watched: whether it was looked at.
            own: the seconds of these that are known to be gradscope's.
        """
        self.number += 1
        self.elapsed += seconds
        if watched:
            # The first step warms up caches and allocators: it is slow in any case.
            if self.number > 1:
                self._watched.append(seconds)
                self._own.append(own)
            if self._last:
                self.latest = self.number - self._last
            self._last = self.number
            self._reckon()
            if self._plain:
                self.looks += min(self._cost, seconds)
            else:
                self._unpriced += 1
        else:
            self._plain.append(max(0.0, seconds - own))
            self.signs += own
            if len(self._plain) == 1 and self._unpriced:
                self._reckon()
                self.looks, self._unpriced = self.looks + self._unpriced * self._cost, 0
            elif self.number % _LATEST == 0:
                self._reckon()

    def _reckon(self) -> None:
        self._cost = self._cost_of_one()
        plain = self.plain
        if plain and self.processes > 1:
            steps = self._cost / (self.budget / 2 * plain)
            self._stride = 1 << max(0, math.ceil(math.log2(steps))) if steps > 1 else 1

    def _cost_of_one(self) -> float:
        """What one look is expected to take: what such a step takes more than a plain one."""
        own = statistics.median(self._own) if self._own else 0.0
        if not self._plain or not self._watched:
            return own
        return max(own, statistics.median(self._watched) - statistics.median(self._plain))

    @property
    def plain(self) -> float | None:
        """The median seconds of a step that was not looked at."""
        return statistics.median(self._plain) if self._plain else None

    @property
    def watched(self) -> float | None:
        """The median seconds of a step that was looked at."""
        return statistics.median(self._watched) if self._watched else None

    @property
    def cost(self) -> float | None:
        """The share of the steps' time that looking took, vital signs with it.

        None where no step shows what one takes that is not looked at.
        """
        if not self.elapsed or self._unpriced:
            return None
        return (self.looks + self.signs) / self.elapsed
