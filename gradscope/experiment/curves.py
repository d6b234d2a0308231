"""Measures a loss over steps: its start, its end, and its slope."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

#: The shares of the steps that the end, and the slope, are taken from.
_END, _SLOPE = 1 / 5, 1 / 3
#: Steps of the beginning that are averaged where the weights barely move.
FIRST = 5
#: Parts whose means give the error of a difference.
_BLOCKS = 8
#: Half of a 95 % interval, in standard errors.
_HALF = 1.96


@dataclass(frozen=True, slots=True)
class Curve:
    """The losses of one arm; None is NaN or Inf.

    Two curves of one script can be compared step by step: both have the same batches and random
    numbers, until an arm's change affects these.
    """

    losses: tuple[float | None, ...]

    @property
    def diverged(self) -> bool:
        """True if the end of the curve is NaN or Inf."""
        tail = self._last(_END)
        return not tail or sum(loss is None for loss in tail) > len(tail) / 2

    @property
    def first(self) -> float | None:
        """The loss of the first step."""
        return self.losses[0] if self.losses else None

    @property
    def beginning(self) -> float | None:
        """The mean of the first steps."""
        known = [loss for loss in self.losses[:FIRST] if loss is not None]
        return math.fsum(known) / len(known) if known else None

    @property
    def end(self) -> float:
        """The median of the last fifth of the steps; infinite if it diverged."""
        known = [loss for loss in self._last(_END) if loss is not None]
        return math.inf if self.diverged else statistics.median(known)

    @property
    def spread(self) -> float:
        """The standard error of ``end``, from the scatter of the steps around a fitted line."""
        known = [loss for loss in self._last(_END) if loss is not None]
        if len(known) < 3:
            return 0.0
        _, rest = _line(known)
        return 1.25 * rest / math.sqrt(len(known))  # a median's is larger than a mean's

    def slope(self) -> tuple[float, float, float] | None:
        """The slope of the loss per step in the last third, and its 95 % interval."""
        known = [loss for loss in self._last(_SLOPE) if loss is not None]
        n = len(known)
        if n < 4 or self.diverged:
            return None
        slope, rest = _line(known)
        half = _HALF * rest / math.sqrt(n * (n * n - 1) / 12)
        return slope, slope - half, slope + half

    def speeds_up(self) -> bool:
        """Return True if the loss falls significantly, and faster in the last third than in the
        second."""
        slope = self.slope()
        third = math.ceil(len(self.losses) * _SLOPE)
        before = Curve(self.losses[:-third][-third:])
        second = _line([loss for loss in before.losses if loss is not None] or [0.0, 0.0])[0]
        return slope is not None and slope[2] < 0 and slope[0] < second

    def above(self, other: Curve, steps: int | None = None) -> tuple[float, float]:
        """Return the mean of this loss minus another in the second half, with its standard error.
        The error comes from the means of ``_BLOCKS`` parts, because nearby steps are correlated.

        Args:
            other: the loss to compare with.
            steps: only so many steps count; None: all.
        """
        pairs = list(zip(self.losses, other.losses, strict=False))[:steps]
        second = pairs[len(pairs) // 2 :]
        differences = [a - b for a, b in second if a is not None and b is not None]
        if len(differences) < 2 * _BLOCKS:
            mean = statistics.fmean(differences) if differences else math.nan
            return mean, math.inf
        size = len(differences) / _BLOCKS
        parts = [differences[round(i * size) : round((i + 1) * size)] for i in range(_BLOCKS)]
        error = statistics.stdev(map(statistics.fmean, parts)) / math.sqrt(_BLOCKS)
        return statistics.fmean(differences), error

    def largest_difference(self, other: Curve) -> float:
        """Return the largest difference at a step, relative to the loss there."""
        pairs = zip(self.losses, other.losses, strict=False)
        known = [(a, b) for a, b in pairs if a is not None and b is not None]
        shares = (abs(a - b) / max(abs(a), abs(b)) for a, b in known if a != b)
        return max(shares, default=0.0) if known else math.inf

    def _last(self, share: float) -> Sequence[float | None]:
        count = max(1, math.ceil(len(self.losses) * share))
        return self.losses[-count:]


def _line(values: Sequence[float]) -> tuple[float, float]:
    """The slope of the least-squares line, and the standard deviation around it."""
    n = len(values)
    slope, intercept = statistics.linear_regression(range(n), values)
    rest = math.fsum((y - slope * x - intercept) ** 2 for x, y in enumerate(values))
    return slope, math.sqrt(rest / max(1, n - 2))
