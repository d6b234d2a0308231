"""The last values of a series, with statistics that a few outliers do not change."""

from __future__ import annotations

import math
from collections import deque

#: A normal distribution's standard deviation over its median absolute deviation.
_SIGMA = 1.4826
#: Number of values that are kept, and number of new values after which the statistics are updated.
KEPT, _FRESH = 128, 16
#: Number of values of which one may be an outlier.
_OUTLIERS = 50
#: The losses of steps are kept separately by number of backwards, for this many numbers.
_WINDOWS = 8


class Window:
    """The last values of a series, with robust statistics of them.

    ``usual`` is their median and ``spread`` their median absolute deviation, as a standard
    deviation; ``factor`` is the same for their logarithms; None if a value is not above 0. ``high``
    is the highest of them without the top one in fifty, ``count`` the number of all values so far.
    All except ``count`` are updated after every few values.
    """

    __slots__ = ("count", "factor", "high", "spread", "usual", "values")

    def __init__(self, kept: int = KEPT) -> None:
        self.values: deque[float] = deque(maxlen=kept)
        self.count = 0
        self.usual = self.spread = self.high = 0.0
        self.factor: float | None = None

    def add(self, value: float | None) -> None:
        """Add a value; NaN and Inf are left out."""
        if value is None or not math.isfinite(value):
            return
        self.values.append(value)
        self.count += 1
        if self.count < _FRESH or self.count % _FRESH == 0:
            self._refresh()

    def _refresh(self) -> None:
        ordered = sorted(self.values)
        self.high = ordered[-1 - len(ordered) // _OUTLIERS]
        self.usual = usual = _middle(ordered)
        self.spread = _SIGMA * _middle(sorted([abs(value - usual) for value in ordered]))
        self.factor = None
        if ordered[0] > 0:
            log, center = math.log, math.log(usual)
            self.factor = _SIGMA * _middle(sorted([abs(log(v) - center) for v in ordered]))

    def deviations(self, value: float, floor: float) -> float:
        """Return the distance of a value above the median, in standard deviations of the logarithm.

        Noise is relative to the value and has long tails, also for a loss. ``floor`` is the
        smallest deviation to trust. Without logarithms, the distance is in plain deviations.
        """
        if self.factor is not None and value > 0:
            return (math.log(value) - math.log(self.usual)) / max(self.factor, floor)
        spread = max(self.spread, floor * abs(self.usual))
        return (value - self.usual) / spread if spread > 0 else 0.0


class StepWindows:
    """Losses and gradient norms of an optimizer's steps, as GS601 and GS602 compare with them.

    ``gradient`` has the norms before clipping.
    """

    __slots__ = ("_losses", "gradient")

    def __init__(self) -> None:
        self.gradient = Window()
        self._losses: dict[int, Window] = {}

    def losses(self, backwards: int) -> Window:
        """Return the losses of steps with this number of backwards: others are not comparable."""
        found = self._losses.get(backwards)
        if found is None:
            if len(self._losses) == _WINDOWS:
                del self._losses[min(self._losses, key=lambda n: self._losses[n].count)]
            found = self._losses[backwards] = Window()
        return found

    def add(self, loss: float | None, backwards: int, norm: float | None) -> None:
        """Add a step."""
        self.losses(backwards).add(loss)
        self.gradient.add(norm)


def _middle(ordered: list[float]) -> float:
    half, odd = divmod(len(ordered), 2)
    return ordered[half] if odd else ordered[half - 1] / 2 + ordered[half] / 2
