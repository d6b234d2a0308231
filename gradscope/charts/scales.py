"""Scales of axes and colours: the position of a value between two ends, and the tick labels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_LARGEST = 1.7e308


@dataclass(frozen=True, slots=True)
class Scale:
    """Scale from ``low`` to ``high``, logarithmic if ``log``."""

    low: float
    high: float
    log: bool = False

    @classmethod
    def of(cls, values: Sequence[float], *, log: bool = False, zero: bool = False) -> Scale:
        """Make a scale that holds all values with a small margin; with ``zero`` it starts at 0."""
        low, high = min(values), max(values)
        if log:
            low, high = math.log10(low), math.log10(high)
            room = max(0.05 * (high - low), 0.1)
            return cls(10 ** max(low - room, -320), 10 ** min(high + room, 308), True)
        if zero:
            return cls(min(low, 0.0), high * 1.05 or 1.0)
        room = 0.12 * (high / 2 - low / 2) or 0.06 * abs(high) or 0.5
        return cls(max(low - room, -_LARGEST), min(high + room, _LARGEST))

    @classmethod
    def from_end_to_end(cls, values: Sequence[float]) -> Scale:
        """Make a logarithmic scale from the smallest value to the largest; equal ones have room."""
        low, high = min(values), max(values)
        return cls(low, high, True) if high > low else cls(low * 0.9, high * 1.1)

    def share(self, value: float) -> float:
        """Return the position of the value on the axis, from 0 to 1."""
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log10(low), math.log10(high), math.log10(value)
        # Halved, for the distance between the largest floats is none.
        return min(max((value / 2 - low / 2) / (high / 2 - low / 2), 0.0), 1.0)

    def ticks(self, most: int = 6) -> list[float]:
        """Return round values on the scale, at most ``most``."""
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
    """Return a tick's text, as short as possible."""
    return f"{value:.0e}" if log and not 0.01 <= value < 10_000 else f"{value:.6g}"


#: Maps of unsigned values in equal steps, from small to large: lightness alone tells the order, for
#: every kind of colour vision and in grey print. By N. Smith and S. van der Walt,
#: https://bids.github.io/colormap/ (CC0).
COLORMAPS = {
    "inferno": "000004 1b0c41 4a0c6b 781c6d a52c60 cf4446 ed6925 fb9b06 f7d13d fcffa4",
    "magma": "000004 180f3d 440f76 721f81 9e2f7f cd4071 f1605d fd9668 feca8d fcfdbf",
    "viridis": "440154 472d7b 3b528b 2c728e 21918c 28ae80 5ec962 addc30 fde725",
}
_VIRIDIS = [tuple(bytes.fromhex(step)) for step in COLORMAPS["viridis"].split()]


def viridis(share: float) -> tuple[float, float, float]:
    """Return red, green and blue, 0 to 255, at ``share`` of the way from the smallest value to the
    largest."""
    place = min(max(share, 0.0), 1.0) * (len(_VIRIDIS) - 1)
    low = min(int(place), len(_VIRIDIS) - 2)
    ends = zip(_VIRIDIS[low], _VIRIDIS[low + 1], strict=True)
    red, green, blue = (a + (b - a) * (place - low) for a, b in ends)
    return red, green, blue
