"""A tensor's statistics as columns: the same for activations, gradients and parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from operator import attrgetter

from gradscope.records.tensors import TensorStats
from gradscope.reporters.tables.columns import Column, Row
from gradscope.typeset.numbers import NOT_THERE, count, number, share

Source = Callable[[Row], TensorStats | None]
#: The cell of a row that has no such tensor.
Absent = Callable[[Row], str]
Tone = Callable[[Row, str], str]

_FLOATS = ("norm", "mean", "std", "min", "max")
_COUNTS = ("nan", "inf")

#: A mean that is zero to rounding.
NOISE = "~0"
#: The step from 1 to the next larger number of each dtype, and how many such are still rounding.
_EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
_ROUNDINGS = 4


def nonfinite(stats: TensorStats | None) -> int:
    """Return the number of NaN and Inf elements."""
    return 0 if stats is None else (stats.nan or 0) + (stats.inf or 0)


def figure(stats: TensorStats, name: str) -> str:
    """A statistic as text. Over no finite element there is none: the elements say why."""
    lost = nonfinite(stats)
    if lost and lost >= stats.numel:
        return "inf" if not stats.nan else "nan"
    if name == "mean" and _is_noise(stats):
        return NOISE
    return number(getattr(stats, name))


def _is_noise(stats: TensorStats) -> bool:
    """Return True if rounding of the values leaves no certain digit of a non-zero mean.

    A layer's subtraction is rounded in float32 at best, in the same direction for many values. A
    half float rounds each value separately, so the mean over many values has less error.
    """
    eps = _EPSILON.get(stats.dtype)
    finite = stats.numel - nonfinite(stats)
    if eps is None or not stats.mean or not stats.norm or finite < 2:
        return False
    common = min(eps, _EPSILON["float32"])
    bound = _ROUNDINGS * max(common, eps / math.sqrt(finite))
    return abs(stats.mean) <= bound * stats.norm / math.sqrt(finite)


def strange(stats: TensorStats) -> str:
    """``3 nan``, ``2 inf``, ``3 nan 2 inf``, or nothing."""
    kinds = ((stats.nan or 0, "nan"), (stats.inf or 0, "inf"))
    return " ".join(f"{count(n)} {kind}" for n, kind in kinds if n) or "0"


def norm_with_losses(stats: TensorStats) -> str:
    """Return a gradient's norm, with the number of elements that the norm leaves out."""
    lost = nonfinite(stats)
    if not lost:
        return number(stats.norm)
    return strange(stats) if lost >= stats.numel else f"{number(stats.norm)} +{strange(stats)}"


def zeros(stats: TensorStats) -> str:
    """The share of elements that are exactly zero."""
    return NOT_THERE if stats.zeros is None else share(stats.zeros, stats.numel)


def columns(
    prefix: str, source: Source[Row], absent: Absent[Row], tone: Tone[Row]
) -> Iterator[Column[Row]]:
    """``norm``, ``mean``, … of one tensor of a row, each key after ``prefix``; ``norm`` first."""

    def column(
        name: str,
        value: Callable[[TensorStats], float | None],
        text: Callable[[TensorStats], str],
        rank: Callable[[TensorStats], float | None] | None = None,
    ) -> Column[Row]:
        def exact(row: Row) -> float | None:
            stats = source(row)
            return None if stats is None else value(stats)

        def show(row: Row) -> str:
            stats = source(row)
            return absent(row) if stats is None else text(stats)

        def compare(row: Row) -> float | None:
            stats = source(row)
            return None if stats is None else (rank or value)(stats)

        return Column(prefix + name, exact, show, compare, tone=tone)

    for name in _FLOATS:
        # A table of gradients has no column of its own for NaN and Inf: the norm says it.
        full = bool(prefix) and name == "norm"
        text = norm_with_losses if full else partial(figure, name=name)
        yield column(name, attrgetter(name), text)
    yield column("zeros", attrgetter("zeros"), zeros, _fraction)
    yield column("zero_count", attrgetter("zeros"), partial(_count, name="zeros"))
    for name in _COUNTS:
        yield column(name, attrgetter(name), partial(_count, name=name))
    yield column("nonfinite", nonfinite, strange)


def _fraction(stats: TensorStats) -> float | None:
    return None if stats.zeros is None else stats.zeros / max(1, stats.numel)


def _count(stats: TensorStats, name: str) -> str:
    n = getattr(stats, name)
    return NOT_THERE if n is None else count(n)
