"""The content of a chart, and a chart as an SVG element for a page.

The page's style sheet has the colours. They come from classes (``c0`` to ``c4``), so that a page
can be dark; lines differ by their dashes too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from gradscope.charts.scales import Scale, written
from gradscope.typeset.numbers import count, number
from gradscope.typeset.text import markup

#: The reason why a point, or some of the values that it summarises, has no height.
ZERO, MISSING, NOT_FINITE = "zero", "missing", "not finite"
MARKS = (ZERO, MISSING, NOT_FINITE)
#: With more points than this, ranges of points are drawn, because a chart has fewer pixels.
MOST = 400
#: Ratio of the largest to the smallest value from which the axis is logarithmic.
_DECADES = 50


@dataclass(frozen=True, slots=True)
class Point:
    """A value ``y`` at a place ``x``; ``low`` and ``high`` are the range of the values that it
    represents.

    ``y`` is None if nothing was measured; ``mark`` then gives the reason.
    """

    x: float
    y: float | None
    low: float | None = None
    high: float | None = None
    mark: str = ""
    name: str = ""


def point(x: float, values: Iterable[float | None], name: str = "", *, lost: bool = False) -> Point:
    """Make a point of several values: their median and range.

    Zero and missing values become marks. ``lost`` means that one of them was NaN or Inf.
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
    """Range of the horizontal axis with a text; ``tone`` is one of a table's cells."""

    first: float
    last: float
    text: str
    tone: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """Curves over one axis.

    ``y`` names the quantity with its unit; ``bars`` start at zero. With ``log`` both axes are
    logarithmic, and each place has a tick.
    """

    title: str
    x: str
    y: str
    curves: tuple[Curve, ...]
    bars: bool = False
    stretches: tuple[Stretch, ...] = ()
    log: bool = False

    @property
    def points(self) -> list[Point]:
        """The points of all curves."""
        return [point for curve in self.curves for point in curve.points]

    @property
    def places(self) -> list[float]:
        """The points' places on the horizontal axis, in order."""
        return sorted({point.x for point in self.points})

    @property
    def heights(self) -> list[float]:
        """All values on the vertical axis, with the ends of ranges."""
        ends = ((p.low, p.y, p.high) for p in self.points)
        return [y for several in ends for y in several if y is not None]

    @property
    def logarithmic(self) -> bool:
        """True if the vertical axis is logarithmic."""
        heights = self.heights
        if self.bars or not heights or min(heights) <= 0:
            return False
        return self.log or max(heights) / _DECADES > min(heights)

    @property
    def scale(self) -> Scale:
        """The scale of the vertical axis, if there are ``heights``."""
        return Scale.of(self.heights, log=self.logarithmic, zero=self.bars)

    @property
    def has_points(self) -> bool:
        """True if there is a point to draw."""
        return bool(self.heights)


def thinned(points: Sequence[Point], most: int = MOST) -> list[Point]:
    """Reduce many points to ``most``.

    Each is the median of a stretch, with the range and the marks of all its points.
    """
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


WIDTH, HEIGHT = 480, 230
#: The plot's edges.
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 456, 12, 182
#: Height of a stretch's strip, and the number of strips below each other.
_STRIP, _LANES = 5, 5
#: Points with a larger distance than this have their own dot, with its name.
_APART = 6.0
#: Points of a curve are not joined if nothing was measured between them.
_SIGNS = {
    "zero": "M{x} {y}m-4 0l4-4l4 4l-4 4z",
    "missing": "M{x} {y}m-3.5-3.5l7 7m0-7l-7 7",
    "not finite": "M{x} {y}m-4 3.5l4-7l4 7z",
}


def panel_svg(panel: Panel) -> str:
    """Return the SVG element, with titles, ticks, labels and tooltips."""
    places = panel.places
    across = _around(places[0])
    if len(places) > 1:
        across = Scale(places[0], places[-1], panel.log)
    if panel.bars:
        across = Scale(across.low - 0.5, across.high + 0.5)
    frame = _Frame(across, panel.scale)
    label = f"{panel.title}: {panel.y} over {panel.x}"
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{markup(label)}">',
        *_axes(panel, frame),
        *_stretches(panel.stretches, frame),
    ]
    for i, curve in enumerate(panel.curves):
        shape = _bars if panel.bars else _line
        parts += [f'<g class="c{i % 5}">', *shape(curve, frame), "</g>"]
    return "".join([*parts, "</svg>"])


class _Frame:
    """Maps values to places on the paper, in tenths of a pixel."""

    def __init__(self, across: Scale, up: Scale) -> None:
        self.across, self.up = across, up

    def x(self, value: float) -> float:
        return round(_LEFT + (_RIGHT - _LEFT) * self.across.share(value), 1)

    def y(self, value: float) -> float:
        return round(_BOTTOM - (_BOTTOM - _TOP) * self.up.share(value), 1)


def _around(place: float) -> Scale:
    return Scale(place - 0.5, place + 0.5)


def _axes(panel: Panel, frame: _Frame) -> Iterator[str]:
    for tick in frame.up.ticks():
        y = frame.y(tick)
        yield f'<path class="grid" d="M{_LEFT} {y}H{_RIGHT}"/>'
        yield f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">'
        yield f"{written(tick, log=frame.up.log)}</text>"
    for tick in panel.places if panel.log else frame.across.ticks(8):
        if float(tick).is_integer():
            yield f'<text x="{frame.x(tick)}" y="{_BOTTOM + 16}" text-anchor="middle">'
            yield f"{count(int(tick))}</text>"
    yield f'<path class="axis" d="M{_LEFT} {_TOP}V{_BOTTOM}H{_RIGHT}"/>'
    middle = (_LEFT + _RIGHT) // 2
    yield f'<text x="{middle}" y="{_BOTTOM + 36}" text-anchor="middle">{markup(panel.x)}</text>'


def _line(curve: Curve, frame: _Frame) -> Iterator[str]:
    points = thinned(curve.points)
    for run in _unbroken(points):
        spread = [p for p in run if p.low != p.high]
        if spread:
            highs = [f"{frame.x(p.x)} {frame.y(_end(p.high, p))}" for p in run]
            lows = [f"{frame.x(p.x)} {frame.y(_end(p.low, p))}" for p in reversed(run)]
            yield f'<path class="band" d="M{"L".join([*highs, *lows])}z"/>'
        places = [f"{frame.x(p.x)} {frame.y(p.y)}" for p in run if p.y is not None]
        yield f'<path class="line" d="M{"L".join(places)}"/>'
    # A dot where there is room for it: it can be pointed at.
    room = (_RIGHT - _LEFT) / max(1, len(points))
    for p in points:
        if p.y is not None and (room >= _APART or len(points) == 1):
            words = _label(p, curve)
            yield f'<circle cx="{frame.x(p.x)}" cy="{frame.y(p.y)}" r="2.5">'
            yield f"<title>{words}</title></circle>"
    yield from _marks(points, curve, frame)


def _bars(curve: Curve, frame: _Frame) -> Iterator[str]:
    points = thinned(curve.points)
    width = round(max(1.0, 0.8 * (_RIGHT - _LEFT) / max(1, len(points))), 1)
    for p in points:
        if p.y is not None:
            top, x = frame.y(p.y), round(frame.x(p.x) - width / 2, 1)
            yield f'<rect x="{x}" y="{top}" width="{width}" height="{round(_BOTTOM - top, 1)}">'
            yield f"<title>{_label(p, curve)}</title></rect>"


def _marks(points: Sequence[Point], curve: Curve, frame: _Frame) -> Iterator[str]:
    """Draw marks: zero and missing values below the axis's end, NaN and Inf above it."""
    for mark in MARKS:
        y = _BOTTOM - 5 if mark in (ZERO, "missing") else _TOP + 5
        found = [p for p in points if p.mark == mark]
        for p in found:
            d = _SIGNS[mark].format(x=frame.x(p.x), y=y)
            yield f'<path class="mark {mark.partition(" ")[0]}" d="{d}">'
            yield f"<title>{markup(p.name or curve.name)}: {mark}</title></path>"


def _stretches(stretches: Sequence[Stretch], frame: _Frame) -> Iterator[str]:
    """Draw stretches as strips at the top, with a lane for each text; a single moment is a vertical
    line."""
    lanes: dict[str, int] = {}
    for one in stretches:
        left, right = frame.x(one.first), frame.x(one.last)
        place = f'x="{left}" y="{_TOP}" width="1" height="{_BOTTOM - _TOP}"'
        if one.first != one.last or one.tone:
            lane = lanes.setdefault(one.text, len(lanes)) % _LANES
            y, wide = _TOP + lane * (_STRIP + 1), max(2.0, round(right - left, 1))
            place = f'x="{left}" y="{y}" width="{wide}" height="{_STRIP}"'
        yield f'<rect class="stretch {one.tone}" {place}><title>{markup(one.text)}</title></rect>'


def _unbroken(points: Sequence[Point]) -> Iterator[list[Point]]:
    """Yield stretches of points that have a height."""
    run: list[Point] = []
    for p in points:
        if p.y is not None:
            run.append(p)
        elif run:
            yield run
            run = []
    if run:
        yield run


def _end(y: float | None, p: Point) -> float:
    return p.y or 0.0 if y is None else y


def _label(p: Point, curve: Curve) -> str:
    spread = f" ({number(p.low)} to {number(p.high)})" if p.low != p.high else ""
    return f"{markup(p.name or curve.name)}: {number(p.y)}{spread}"
