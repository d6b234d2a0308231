"""Axes: where a value is between the two ends, and which values are written beside them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_LARGEST = 1.7e308


@dataclass(frozen=True, slots=True)
class Scale:
    """From ``low`` to ``high``, by the logarithm where ``log``."""

    low: float
    high: float
    log: bool = False

    @classmethod
    def of(cls, values: Sequence[float], *, log: bool = False, zero: bool = False) -> Scale:
        """One that holds all values with a little room; ``zero`` is that it begins there."""
        low, high = min(values), max(values)
        if log:
            low, high = math.log10(low), math.log10(high)
            room = max(0.05 * (high - low), 0.1)
            return cls(10 ** max(low - room, -320), 10 ** min(high + room, 308), True)
        if zero:
            return cls(min(low, 0.0), high * 1.05 or 1.0)
        room = 0.12 * (high / 2 - low / 2) or 0.06 * abs(high) or 0.5
        return cls(max(low - room, -_LARGEST), min(high + room, _LARGEST))

    def share(self, value: float) -> float:
        """How far the value is up the axis, from 0 to 1."""
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log10(low), math.log10(high), math.log10(value)
        # Halved, for the distance between the largest floats is none.
        return min(max((value / 2 - low / 2) / (high / 2 - low / 2), 0.0), 1.0)

    def ticks(self, most: int = 6) -> list[float]:
        """Round values on it, at most so many."""
        if self.log:
            first, last = math.ceil(math.log10(self.low)), math.floor(math.log10(self.high))
            step = max(1, -(-(last - first + 1) // most))
            powers = [n for n in range(first, last + 1) if n % step == 0]
            if len(powers) > 1:
                return [10.0**n for n in powers]
        reach = min(self.high - self.low, _LARGEST)
        step_size = 10 ** math.floor(math.log10(reach / most))
        step_size *= next(n for n in (1, 2, 5, 10) if reach / (step_size * n) <= most)
        first = math.ceil(self.low / step_size)
        last = math.floor(self.high / step_size)
        return [n * step_size for n in range(first, last + 1)]


def written(value: float, *, log: bool = False) -> str:
    """A tick's text: as short as it can be."""
    return f"{value:.0e}" if log and not 0.01 <= value < 10_000 else f"{value:.6g}"
