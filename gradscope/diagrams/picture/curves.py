"""Arrows of a drawing in columns: as Graphviz drew them, arcs beside a column, ways to another."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from gradscope.diagrams.picture.boxes import Box
from gradscope.diagrams.picture.dot_text import attributes, quoted

#: The length of an arrow head, in points.
_TIP = 8.0
_PALE = "#9aa3af"

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class PlacedBox:
    """The centre and the size of a box in points; y grows upwards."""

    x: float
    y: float
    width: float
    height: float


def edge(
    tail: Box,
    to: Box,
    placed: dict[str, PlacedBox],
    columns: dict[str, tuple[int, float, float]],
    curves: dict[tuple[str, str], list[list[Point]]],
) -> str:
    """An arrow: as Graphviz drew it, an arc beside its column, or a curve to another column."""
    column, right, up = columns[tail.id]
    start, end = placed[tail.id], placed[to.id]
    about: dict[str, str] = {}
    known = curves.get((tail.id, to.id))
    if column != columns[to.id][0]:
        points = list(_across(start, end))
        about["color"] = _PALE
    elif known:
        points = [(x + right, y + up) for x, y in known.pop()]
    else:
        points = list(_arc(start, end))
        about["color"] = _PALE
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    tip = "{:.1f},{:.1f}".format(*_tip(points))
    about["pos"] = quoted(f"e,{tip} {path}")
    return f"  {quoted(tail.id)} -> {quoted(to.id)} {attributes(about)};"


def _across(start: PlacedBox, end: PlacedBox) -> Iterator[Point]:
    low, high = start.y - start.height / 2, end.y + end.height / 2 + _TIP
    yield from ((start.x, low), (start.x, low - 50), (end.x, high + 50), (end.x, high))


def _arc(start: PlacedBox, end: PlacedBox) -> Iterator[Point]:
    reach = bulge(start.y - end.y)
    out, into = start.x + start.width / 2, end.x + end.width / 2 + _TIP
    side = max(out, into) + reach
    yield from ((out, start.y), (side, start.y), (side, end.y), (into, end.y))


def _tip(points: list[Point]) -> Point:
    """Where the arrow head ends: a little on from the curve's last point, the way it came."""
    (x, y), (before_x, before_y) = points[-1], points[-2]
    far = math.hypot(x - before_x, y - before_y) or 1.0
    return x + _TIP * (x - before_x) / far, y + _TIP * (y - before_y) / far


def bulge(tall: float) -> float:
    """How far the control points of an arc over that height stand to the right."""
    return 30 + min(300.0, 0.15 * abs(tall))
