"""Estimates the difference of two tensors from a few numbers of each."""

from __future__ import annotations

import array
import binascii
import math
import sys
from dataclasses import dataclass

from gradscope.errors import ConfigError, Place
from gradscope.records.diff import TensorDiff
from gradscope.records.full_samples import SKETCH_BITS, SKETCH_WIDTH, Sketch
from gradscope.records.tensors import TensorStats

#: The distance of 1 to the next number.
EPSILONS = {
    "float64": 2.0**-52,
    "complex128": 2.0**-52,
    "float32": 2.0**-23,
    "complex64": 2.0**-23,
    "float16": 2.0**-10,
    "bfloat16": 2.0**-7,
}
#: Multiple of a sketch's noise from which an error counts: another draw has another noise.
SKETCH_FACTOR = 2.0
#: Statistics are computed to five digits or better.
_STATISTICS = 1e-4
_NOT_FINITE = "NaN or Inf at other elements"


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Accuracy of the numbers of two runs: the epsilon of the coarser dtype."""

    epsilon: float

    @classmethod
    def of(cls, *dtypes: str | None) -> Accuracy:
        """Return the accuracy of the runs' dtypes."""
        return cls(max(EPSILONS.get(dtype or "", 0.0) for dtype in dtypes) or 2.0**-23)

    @property
    def step(self) -> float:
        """The relative change of each number that measures a sketch's noise."""
        return SKETCH_BITS * self.epsilon

    @property
    def half(self) -> float:
        """The relative error from which statistics differ: √ε, at least 1e-5."""
        return max(math.sqrt(self.epsilon), _STATISTICS)


def sketch_difference(
    a: Sketch, b: Sketch, accuracy: Accuracy, files: tuple[str, str]
) -> TensorDiff:
    """Estimate the difference of two tensors from their sketches. It diverges from twice the noise
    on.

    Raises:
        ConfigError: a sketch is damaged.
    """
    if a.nonfinite != b.nonfinite:
        return TensorDiff(note=_NOT_FINITE, diverges=True)
    noise = max([accuracy.step, *(one.noise for one in (a, b) if one.noise is not None)])
    diff = 0.0 if a.numbers == b.numbers else _distance(a, b, files)
    scale = a.norm or b.norm
    error = diff / scale if diff else 0.0
    if not a.norm and b.norm:
        return TensorDiff(
            note="A is all zeros", noise=noise, diverges=error > SKETCH_FACTOR * noise
        )
    return TensorDiff(
        error,
        _cosine(a.norm, b.norm, diff),
        noise=noise,
        diverges=error > SKETCH_FACTOR * noise,
    )


def sketch_scale(a: Sketch, b: Sketch, files: tuple[str, str]) -> float:
    """Estimate the relative growth of ``a`` that comes closest to ``b``.

    Raises:
        ConfigError: a sketch is damaged.
    """
    ours, theirs = _numbers(a, files[0]), _numbers(b, files[1])
    along = sum(x * (y - x) for x, y in zip(ours, theirs, strict=True))
    return along / (sum(x * x for x in ours) or 1.0)


def _lacks(stats: TensorStats) -> bool:
    """Return True if a tensor has no statistics, as with ranks that cannot be combined."""
    return stats.nan is None or (stats.norm is None and not stats.nan and not stats.inf)


def statistics_difference(a: TensorStats, b: TensorStats, accuracy: Accuracy) -> TensorDiff:
    """Return a lower bound of the difference, from norm, mean, deviation and range.

    Two tensors with these means and deviations differ by at least √(n (Δmean² + Δstd²)). It
    diverges from an error of √ε of the dtype on.
    """
    accuracy = Accuracy(max(accuracy.epsilon, Accuracy.of(a.dtype, b.dtype).epsilon))
    lacking = [which for which, stats in (("A", a), ("B", b)) if _lacks(stats)]
    if len(lacking) == 1:
        return TensorDiff(note=f"{lacking[0]} has no statistics")
    if not lacking and (a.nan, a.inf) != (b.nan, b.inf):
        return TensorDiff(note=_NOT_FINITE, diverges=True)
    pairs = [_difference(getattr(a, name), getattr(b, name)) for name in _MEASURES]
    norm, mean, std, *ends = pairs
    if None in pairs or a.norm is None or norm is None or mean is None or std is None:
        return TensorDiff(note="no statistics")
    finite = a.numel - (a.nan or 0) - (a.inf or 0)
    largest = max(end for end in ends if end is not None)
    diff = max(norm, math.sqrt(finite) * math.hypot(mean, std), largest)
    if not a.norm and diff:
        return TensorDiff(
            note="A is all zeros", largest=largest, noise=accuracy.half, diverges=True
        )
    error = diff / a.norm if diff else 0.0
    return TensorDiff(error, largest=largest, noise=accuracy.half, diverges=error > accuracy.half)


_MEASURES = ("norm", "mean", "std", "min", "max")


def _difference(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else abs(b - a)


def _cosine(a: float, b: float, diff: float) -> float | None:
    """Return the cosine of two vectors of these lengths and that distance."""
    if not a or not b:
        return None
    return max(-1.0, min(1.0, 1.0 - (diff / a * (diff / b) - (b - a) / a * ((b - a) / b)) / 2.0))


def _distance(a: Sketch, b: Sketch, files: tuple[str, str]) -> float:
    return math.dist(_numbers(a, files[0]), _numbers(b, files[1]))


def _numbers(sketch: Sketch, file: str) -> array.array[float]:
    try:
        numbers = binascii.a2b_base64(sketch.numbers)
        found = array.array("f" if len(numbers) == 4 * SKETCH_WIDTH else "d", numbers)
    except (binascii.Error, ValueError):
        found = array.array("d")
    if len(found) != SKETCH_WIDTH or not math.isfinite(sum(found)):
        where = sketch.path if sketch.call is None else sketch.name
        raise ConfigError(
            f"the sketch of `{where}` ({sketch.kind}) is damaged: expected {SKETCH_WIDTH} numbers",
            place=Place(file),
            help="write the report again with `gradscope inspect … --sketch -o report.json`",
        )
    if sys.byteorder == "big":
        found.byteswap()
    return found
