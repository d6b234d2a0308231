"""How often is done what would take too much of the time at every step."""

from __future__ import annotations

import math
import statistics
from collections import deque

from gradscope.training.interval import Interval

#: Over so many times it is measured what one takes, and how rare they may get.
MEASURED, _RAREST = 16, 64
#: What is left of its multiples without their whole parts spreads evenly (Weyl's equidistribution
#: theorem), also over every nth step: optimizers that take turns all get their share.
_GOLDEN = (math.sqrt(5) - 1) / 2


class Cadence:
    """At every step, or at one of so many: as often as a share of the budget pays for.

    What has the longer cadence of two is due only where the other is.

    Args:
        interval: knows the budget, and what a plain step takes.
        share: of the budget.
    """

    def __init__(self, interval: Interval, share: float) -> None:
        #: One step of so many, on average.
        self.every = 1
        self._interval, self._share = interval, share
        self._seconds: deque[float] = deque(maxlen=MEASURED)

    def due(self, step: int) -> bool:
        """Whether it is done in the step that comes after so many."""
        return self.every == 1 or step * _GOLDEN % 1.0 < 1 / self.every

    def took(self, seconds: float) -> None:
        """It was done once."""
        self._seconds.append(seconds)

    def renew(self) -> None:
        """Set the cadence by what it took lately: to be called each ``MEASURED`` steps."""
        if self._interval.every is not None or not self._seconds:
            return
        plain = self._interval.plain
        if plain:
            cost = statistics.median(self._seconds) / plain
            wanted = cost / (self._share * self._interval.budget)
            self.every = min(_RAREST, max(1, math.ceil(wanted)))
