"""Numbers over steps as a line of blocks: ``▇▆▅▃▂▁``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

BLOCKS = "▁▂▃▄▅▆▇█"
#: Stands where a number was NaN or infinite.
NOT_FINITE = "!"
#: Values further than this many interquartile ranges from the middle half are drawn at the edge.
_FAR = 30
#: From this ratio of the highest to the lowest on, heights are those of the logarithm.
_DECADES = 100


class Point(NamedTuple):
    """A number at a step: ``value`` None is nothing measured, ``lost`` that it was not finite."""

    step: int
    value: float | None
    lost: bool = False


def curve(points: Iterable[Point], first: int, last: int, width: int) -> str:
    """A column for each stretch of the steps ``first`` to ``last``: the median of what is there.

    A stretch without a point is drawn as the one before it, for nothing else is known of it; where
    a point has no value there is a blank. Heights go from the lowest value to the highest, by their
    logarithms where these are more than 100 times apart. One outlier does not flatten the rest: a
    value further beyond the scale than this is long stands at its edge.
    """
    steps = last - first + 1
    width = max(1, min(width, steps))
    found: list[list[float]] = [[] for _ in range(width)]
    seen, lost = [False] * width, [False] * width
    for point in points:
        i = min(width - 1, max(0, (point.step - first) * width // steps))
        seen[i] = True
        value = point.value
        if value is not None and math.isfinite(value):
            found[i].append(value)
        lost[i] |= point.lost or (value is not None and not math.isfinite(value))
    middles: list[float | None] = []
    for i, values in enumerate(found):
        if seen[i] or not middles:
            # The lower of two middles: their mean may be beyond the largest float.
            middles.append(sorted(values)[(len(values) - 1) // 2] if values else None)
        else:
            middles.append(middles[-1])
    blocks = _blocks(middles, found)
    return "".join(NOT_FINITE if lost[i] else block for i, block in enumerate(blocks))


def _blocks(values: Sequence[float | None], every: Sequence[Sequence[float]]) -> list[str]:
    """Blocks as high as the values; ``every`` are those that each stands for."""
    known = sorted(value for value in values if value is not None)
    if not known:
        return [" "] * len(values)
    low, high = bottom, top = _bounds(known)
    positive = next((value for value in known if value > 0), 0.0)
    logarithmic = low >= 0 and positive > 0 and high / _DECADES > positive
    if logarithmic:
        low, high = math.log(max(low, positive)), math.log(high)
    # Halved, for the distance between the largest floats is none.
    reach = high / 2 - low / 2

    def block(value: float) -> str:
        if reach <= 0:
            return BLOCKS[0] if value == 0 else BLOCKS[3]
        if logarithmic:
            if value <= 0:
                return BLOCKS[0]
            value = math.log(value)
        share = (min(max(value, low), high) / 2 - low / 2) / reach
        return BLOCKS[round(share * (len(BLOCKS) - 1))]

    blocks = [" " if value is None else block(value) for value in values]
    # Beyond the scale by more than its length: a spike that no median shows.
    above, below = 2 * top - bottom, 2 * bottom - top
    for i, several in enumerate(every):
        if several and max(several) > above:
            blocks[i] = BLOCKS[-1]
        elif several and min(several) < below:
            blocks[i] = BLOCKS[0]
    return blocks


def _bounds(known: Sequence[float]) -> tuple[float, float]:
    """The lowest and the highest value, those far beyond the middle half left out."""
    quarter, three = known[len(known) // 4], known[(3 * len(known)) // 4]
    reach = _FAR * (three / 2 - quarter / 2) * 2
    if not 0 < reach < math.inf:
        return known[0], known[-1]
    inside = [value for value in known if quarter - reach <= value <= three + reach]
    return inside[0], inside[-1]
