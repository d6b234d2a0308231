"""Draws numbers as block characters: lines over steps (``▇▆▅▃▂▁``), and bars beside figures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

BLOCKS = "▁▂▃▄▅▆▇█"
#: The mark of a NaN or Inf.
NOT_FINITE = "!"
#: Interquartile ranges beyond the middle half from which a median is left out of the scale, and a
#: single value is a spike.
_FAR, _SPIKE = 10, 5
#: Share of the largest value up to which differences are drawn as a level line.
_FLAT = 1e-3
#: Ratio of the highest to the lowest value from which heights are logarithmic.
_DECADES = 100


def curve(
    steps: Sequence[int],
    values: Sequence[float | None],
    lost: Iterable[int],
    *,
    first: int,
    last: int,
    width: int,
) -> str:
    """Draw a column for each stretch of the steps ``first`` to ``last``: the median of its
    values.

    A stretch without a step has the height of the one before it. A step without a value is a blank;
    a step with NaN or Inf (``lost``) has a mark. Heights go from the lowest value to the highest,
    on a log scale if they differ by a factor of more than 100. An outlier does not flatten the
    rest: a value far beyond the scale is drawn at its edge.
    """
    length = last - first + 1
    width = max(1, min(width, length))
    found: list[list[float]] = [[] for _ in range(width)]
    seen, marks = [False] * width, [False] * width
    for step, value in zip(steps, values, strict=True):
        i = min(width - 1, max(0, (step - first) * width // length))
        seen[i] = True
        if value is None:
            continue
        if math.isfinite(value):
            found[i].append(value)
        else:
            marks[i] = True
    for step in lost:
        marks[min(width - 1, max(0, (step - first) * width // length))] = True
    middles: list[float | None] = []
    final = max((i for i in range(width) if seen[i]), default=0)
    for i, several in enumerate(found):
        if seen[i] or not middles or i > final:
            # The lower of two middles: their mean may be beyond the largest float.
            middles.append(sorted(several)[(len(several) - 1) // 2] if several else None)
        else:
            middles.append(middles[-1])
    blocks = _blocks(middles, found)
    return "".join(NOT_FINITE if marks[i] else block for i, block in enumerate(blocks))


def _blocks(values: Sequence[float | None], every: Sequence[Sequence[float]]) -> list[str]:
    """Draw blocks as high as the values; ``every`` has the values in each block."""
    known = sorted(value for value in values if value is not None)
    if not known:
        return [" "] * len(values)
    low, high = bottom, top = _bounds(known)
    flat = top - bottom <= _FLAT * max(abs(top), abs(bottom))
    positive = next((value for value in known if value > 0), 0.0)
    logarithmic = low >= 0 and positive > 0 and high / _DECADES > positive
    if logarithmic:
        low, high = math.log(max(low, positive)), math.log(high)
    # Halved, for the distance between the largest floats is none.
    reach = high / 2 - low / 2

    def block(value: float) -> str:
        if flat or reach <= 0:
            return BLOCKS[0] if value == 0 else BLOCKS[3]
        if logarithmic:
            if value <= 0:
                return BLOCKS[0]
            value = math.log(value)
        share = (min(max(value, low), high) / 2 - low / 2) / reach
        return BLOCKS[round(share * (len(BLOCKS) - 1))]

    blocks = [" " if value is None else block(value) for value in values]
    # A spike that no median shows: far from the other values, and beyond the scale by its length.
    least, most = _fences(sorted(value for several in every for value in several), _SPIKE)
    above, below = max(most, 2 * top - bottom), min(least, 2 * bottom - top)
    for i, several in enumerate(every):
        if several and max(several) > above:
            blocks[i] = BLOCKS[-1]
        elif several and min(several) < below:
            blocks[i] = BLOCKS[0]
    return blocks


def _bounds(known: Sequence[float]) -> tuple[float, float]:
    """Return the lowest and the highest value, without values far beyond the middle half.

    If no value is negative, distances are ratios, so values that grow or fall by a constant factor
    have no outliers.
    """
    if known[0] < 0:
        return _inside(known, known)
    positive = [value for value in known if value > 0]
    if not positive:
        return 0.0, 0.0
    low, high = _inside(positive, [math.log(value) for value in positive])
    return known[0] if known[0] == 0 else low, high


def _inside(known: Sequence[float], compared: Sequence[float]) -> tuple[float, float]:
    low, high = _fences(compared, _FAR)
    if low == high:
        return known[0], known[-1]
    pairs = zip(known, compared, strict=True)
    inside = [value for value, place in pairs if low <= place <= high]
    return inside[0], inside[-1]


def _fences(known: Sequence[float], reach: int) -> tuple[float, float]:
    """Return limits so many interquartile ranges beyond the middle half of sorted numbers."""
    quarter, three = known[len(known) // 4], known[(3 * len(known)) // 4]
    distance = reach * (three - quarter)
    return quarter - distance, three + distance


#: A bar's length in cells, and its last cell in eighths.
_CELLS, _EIGHTHS = 8, " ▏▎▍▌▋▊▉"


def log_bars(values: Sequence[float | None]) -> list[str]:
    """Draw bars on a log scale from the smallest value to the largest; none for zero and for
    missing values."""
    logs = [math.log10(v) if v else None for v in values]
    there = [x for x in logs if x is not None]
    if not there:
        return ["" for _ in values]
    top = max(there)
    span = max(top - min(there), 1.0)
    return ["" if x is None else bar(1 - (top - x) / span) for x in logs]


def bar(part: float, cells: int = _CELLS) -> str:
    """Return a bar of a share of its full length; any value above 0 is visible."""
    eighths = max(1, round(part * cells * 8))
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def levels(values: Sequence[float | None], top: float) -> str:
    """Draw a block for each value, with its height between 0 and ``top``; a blank if there is none.

    Any value above zero is higher than the lowest block.
    """

    def block(value: float | None) -> str:
        if value is None:
            return " "
        height = math.ceil(min(1.0, value / top) * (len(BLOCKS) - 1)) if top > 0 else 0
        return BLOCKS[max(0, height)]

    return "".join(map(block, values))
