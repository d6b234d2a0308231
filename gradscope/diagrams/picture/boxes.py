"""The parts of a picture: boxes, arrows, frames and colours.

Colours are a light viridis ramp on a log scale, with other fills for missing values. Black text on
every fill has a contrast of at least 4.5. The text in a box also gives its value.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gradscope.charts.scales import viridis
from gradscope.typeset.numbers import number, size


@dataclass(frozen=True, slots=True)
class Box:
    """An operation, a closed group, a parameter or an input.

    ``lines`` is its text, the first line bold. ``node`` is the graph's node, if it is a single one;
    ``mark`` is set where zero, missing or non-finite gradients begin.
    """

    id: str
    kind: str  # operation | group | repeats | parameter | input
    lines: tuple[str, ...]
    title: str
    fill: str
    cluster: int | None = None
    node: int | None = None
    mark: str | None = None


@dataclass(frozen=True, slots=True)
class Arrow:
    """An arrow in the direction of gradients, with the number of gradients."""

    tail: int
    head: int
    count: int = 1


@dataclass(frozen=True, slots=True)
class Cluster:
    """An open group: a labelled frame around its boxes and inner clusters.

    The label is at the left (``l``) or the right (``r``) of the top; ``wide`` doubles the room for
    it.
    """

    label: str
    title: str
    parent: int | None = None
    depth: int = 0
    side: str = "l"
    wide: bool = False


@dataclass(frozen=True, slots=True)
class Drawing:
    """The boxes, arrows and clusters of a picture; they refer to each other by index.

    ``bar`` has the colours of the scale from small to large, ``ticks`` the values at its left end,
    middle and right end; ``legend`` explains the other colours. ``direction`` is the direction of
    arrows: down (TB) or to the right (LR).
    """

    title: str
    notes: tuple[str, ...]
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]
    clusters: tuple[Cluster, ...]
    bar: tuple[str, ...] = ()
    ticks: tuple[str, ...] = ()
    legend: tuple[tuple[str, str], ...] = ()
    by: str = "gradient"
    full: bool = False
    direction: str = "TB"

    @property
    def depth(self) -> int:
        """The level of the deepest boxes: 1 is the model's direct parts."""
        return max((c.depth for c in self.clusters), default=0)


def height(drawing: Drawing) -> float:
    """The approximate height of the drawing in points: the longest path, by the lines in boxes."""
    top = [0.0] * len(drawing.boxes)
    for i, heads in downwards(drawing):
        bottom = top[i] + 14 * len(drawing.boxes[i].lines) + 34
        for head in heads:
            top[head] = max(top[head], bottom)
    frames = 2 * 22 * drawing.depth
    return max(top, default=0.0) + frames + 70


def downwards(drawing: Drawing) -> Iterator[tuple[int, list[int]]]:
    """Yield the boxes in topological order, each with the boxes that it leads to."""
    waiting = Counter(arrow.head for arrow in drawing.arrows)
    after: dict[int, list[int]] = {}
    for arrow in drawing.arrows:
        after.setdefault(arrow.tail, []).append(arrow.head)
    ready = [i for i in range(len(drawing.boxes)) if not waiting[i]]
    while ready:
        i = ready.pop()
        yield i, after.get(i, [])
        for head in after.get(i, ()):
            waiting[head] -= 1
            if not waiting[head]:
                ready.append(head)


#: So much white is mixed in that black text can be read on the darkest end too.
_WHITE = 0.5

#: Number of steps of a scale's bar.
_BAR = 36

INK = "#111111"
PLAIN = "#ffffff"
ZERO = "#ffd9b3"
MISSING = "#e4e4e4"
NONFINITE = "#ff9d9d"
LEAF = "#f4f7ff"


def contrast(one: str, other: str) -> float:
    """Return the WCAG 2 contrast ratio of two ``#rrggbb`` colours, from 1 to 21."""
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(color: str) -> float:
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def ramp(share: float) -> str:
    """Return the colour at ``share`` of the way from the smallest value to the largest."""
    return "#" + "".join(f"{round(255 * _WHITE + c * (1 - _WHITE)):02x}" for c in viridis(share))


@dataclass(frozen=True, slots=True)
class Scale:
    """A log scale over positive values; without any, no box is coloured.

    ``least`` is the smallest value, ``low`` the value of the first colour.
    """

    by: str
    low: float
    high: float
    least: float = 0.0

    def fill(self, value: float | None, nonfinite: int = 0) -> str:
        """Return the fill of a box with that value."""
        if self.by == "gradient" and nonfinite:
            return NONFINITE
        if value is None:
            return MISSING if self.by == "gradient" else PLAIN
        if value <= 0:
            return ZERO if self.by == "gradient" else PLAIN
        # Differences of logarithms: the quotient of two numbers that exist may overflow.
        low, high = math.log(self.low), math.log(self.high)
        return ramp((math.log(value) - low) / (high - low) if high > low else 1.0)

    def _values(self, steps: int) -> list[float]:
        """Yield values in equal steps of the logarithm, from the smallest to the largest."""
        if not self.high:
            return []
        if self.least == self.high:
            return [self.high]
        low, high = math.log(self.least), math.log(self.high)
        inner = [math.exp(low + (high - low) * i / (steps - 1)) for i in range(1, steps - 1)]
        return [self.least, *inner, self.high]

    def bar(self) -> tuple[str, ...]:
        """Return the colours from the smallest value to the largest."""
        return tuple(self.fill(value) for value in self._values(_BAR))

    def ticks(self) -> tuple[str, ...]:
        """Return the values at the bar's ends and in its middle; a single one if all are equal."""
        return tuple(map(number if self.by == "gradient" else _bytes, self._values(3)))

    def legend(self, fills: Iterable[str]) -> tuple[tuple[str, str], ...]:
        """Return swatches with words: the fills used beside the scale."""
        used = set(fills)
        others = ((ZERO, "zero"), (MISSING, "no gradient"), (NONFINITE, "NaN or Inf"))
        return tuple(pair for pair in others if pair[0] in used)


def _bytes(value: float) -> str:
    return size(round(value))


def scale(by: str, values: Iterable[float | None]) -> Scale:
    """Make a scale over the positive finite ``values``, at least a decade wide."""
    positive = [v for v in values if v is not None and 0 < v < math.inf]
    if not positive:
        return Scale(by, 0.0, 0.0)
    least, high = min(positive), max(positive)
    # Less than a decade of difference is the same order of size, and should not look like a
    # difference.
    return Scale(by, min(least, high / 10) or least, high, least)
