"""The content of a chart, independent of its drawing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from gradscope.charts.scales import Scale

#: Why a point has no height, or that it stands for some without one.
ZERO, MISSING, NOT_FINITE = "zero", "missing", "not finite"
MARKS = (ZERO, MISSING, NOT_FINITE)
#: Of more points stretches are drawn: no chart is as many pixels wide.
MOST = 400
#: From this ratio of the largest to the smallest on, heights are those of the logarithm.
_DECADES = 50


@dataclass(frozen=True, slots=True)
class Point:
    """A height over a place; ``low`` and ``high`` are the ends of all that it stands for.

    ``y`` is None where nothing was measured; a ``mark`` then says why.
    """

    x: float
    y: float | None
    low: float | None = None
    high: float | None = None
    mark: str = ""
    name: str = ""


def point(x: float, values: Iterable[float | None], name: str = "", *, lost: bool = False) -> Point:
    """The middle of several values with their ends; zero and nothing are marks.

    ``lost`` is that something among them was NaN or Inf.
    """
    every = list(values)
    finite = sorted(v for v in every if v is not None and math.isfinite(v))
    lost = lost or any(v is not None and not math.isfinite(v) for v in every)
    mark = NOT_FINITE if lost else "" if finite else MISSING
    above = [value for value in finite if value != 0]
    if not above:
        return Point(x, None, mark=mark or ZERO, name=name)
    middle = above[(len(above) - 1) // 2]
    zero = mark or (ZERO if len(above) < len(finite) else "")
    return Point(x, middle, above[0], above[-1], zero, name)


@dataclass(frozen=True, slots=True)
class Curve:
    """Points in the order of their places."""

    name: str
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Stretch:
    """Places of which something is reported; ``tone`` is that of a cell."""

    first: float
    last: float
    text: str
    tone: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """Curves over one axis. ``y`` names the quantity with its unit; ``bars`` are on zero."""

    title: str
    x: str
    y: str
    curves: tuple[Curve, ...]
    bars: bool = False
    stretches: tuple[Stretch, ...] = ()

    @property
    def points(self) -> list[Point]:
        """Those of all curves."""
        return [point for curve in self.curves for point in curve.points]

    @property
    def heights(self) -> list[float]:
        """Everything that has a place on the vertical axis."""
        ends = ((p.low, p.y, p.high) for p in self.points)
        return [y for several in ends for y in several if y is not None]

    @property
    def logarithmic(self) -> bool:
        """Whether the vertical axis is."""
        heights = self.heights
        if self.bars or not heights or min(heights) <= 0:
            return False
        return max(heights) / _DECADES > min(heights)

    @property
    def scale(self) -> Scale:
        """The vertical axis of one that has ``heights``."""
        return Scale.of(self.heights, log=self.logarithmic, zero=self.bars)

    @property
    def has_points(self) -> bool:
        """Whether there is anything to see."""
        return bool(self.heights)


def thinned(points: Sequence[Point], most: int = MOST) -> list[Point]:
    """Of many points as many stretches: the middle one, with the ends of all, and their mark."""
    if len(points) <= most:
        return list(points)
    parts = [points[i * len(points) // most : (i + 1) * len(points) // most] for i in range(most)]
    return [_together(part) for part in parts]


def _together(points: Sequence[Point]) -> Point:
    known = sorted((p for p in points if p.y is not None), key=lambda p: p.y or 0.0)
    mark = max((p.mark for p in points), key=lambda mark: (*("",), *MARKS).index(mark))
    if not known:
        return replace(points[0], mark=mark)
    lows = [p.y if p.low is None else p.low for p in known]
    highs = [p.y if p.high is None else p.high for p in known]
    middle = known[(len(known) - 1) // 2]
    low = min(y for y in lows if y is not None)
    return replace(middle, low=low, high=max(y for y in highs if y is not None), mark=mark)
