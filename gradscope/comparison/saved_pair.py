"""Reads two saved reports, pairs their tensors and calls, and estimates the differences."""

from __future__ import annotations

import array
import binascii
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from gradscope.comparison.alignment import CallKey, Renaming, align_calls, align_parameters
from gradscope.errors import ConfigError, OptionError, Place
from gradscope.records.diff import TensorDiff
from gradscope.records.full_samples import SKETCH_BITS, SKETCH_WIDTH, Sketch
from gradscope.records.modules import ModuleCall
from gradscope.records.report import Report
from gradscope.records.tensors import TensorRecord, TensorStats

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


class TensorKey(NamedTuple):
    """Key of a call's tensor, or of the parameter ``path`` if ``call`` is None; as in a sketch."""

    call: CallKey | None
    kind: str
    path: str


@dataclass(frozen=True, slots=True)
class SavedRun:
    """Contents of the report of one run.

    Attributes:
        file: its path.
        report: the report.
        statistics, sketches: the statistics and the sketch of each tensor, by its key.
        alike: the features of each call, for the alignment.
    """

    file: str
    report: Report
    statistics: dict[TensorKey, TensorStats]
    sketches: dict[TensorKey, Sketch]
    alike: dict[CallKey, tuple[object, ...]]

    @classmethod
    def of(cls, report: Report, file: str) -> SavedRun:
        """Read the tensors and calls of a report."""
        around = {call.name.rpartition(".")[0] for call in report.calls if call.name}
        alike: dict[CallKey, tuple[object, ...]] = {
            (c.name, c.call): (c.name in around, tuple(t.activation.shape for t in c.outputs))
            for c in report.calls
        }
        sketches = {
            TensorKey(None if s.call is None else (s.name, s.call), s.kind, s.path): s
            for s in report.sketches
        }
        return cls(file, report, dict(_statistics(report)), sketches, alike)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each parameter."""
        return {parameter.name: parameter.shape for parameter in self.report.parameters}

    @property
    def dtypes(self) -> tuple[str | None, ...]:
        """Return the dtypes of the run's numbers."""
        return self.report.run.dtype, self.report.run.autocast


def timeline(calls: tuple[ModuleCall, ...]) -> Iterator[tuple[ModuleCall, bool]]:
    """Yield each call when it begins (False) and when it returns (True)."""
    running: list[ModuleCall] = []
    for call in sorted(calls, key=lambda call: call.order):
        while running and not _inside(call.name, running[-1].name):
            yield running.pop(), True
        yield call, False
        running.append(call)
    while running:
        yield running.pop(), True


def _inside(name: str, outer: str) -> bool:
    return name != outer and (not outer or name.startswith(f"{outer}."))


def _statistics(report: Report) -> Iterator[tuple[TensorKey, TensorStats]]:
    for call in report.calls:
        for side, tensors in (("input", call.inputs), ("output", call.outputs)):
            for tensor in tensors:
                yield from _of_tensor((call.name, call.call), side, tensor)
    for parameter in report.parameters:
        yield TensorKey(None, "value", parameter.name), parameter.value
        if parameter.gradient is not None:
            yield TensorKey(None, "gradient", parameter.name), parameter.gradient


def _of_tensor(
    call: CallKey, side: str, tensor: TensorRecord
) -> Iterator[tuple[TensorKey, TensorStats]]:
    yield TensorKey(call, side, tensor.path), tensor.activation
    if tensor.gradient is not None:
        yield TensorKey(call, f"grad_{side}", tensor.path), tensor.gradient


#: Share of the smaller model's parameters that the other must have.
_LEAST = 0.1


@dataclass(frozen=True, slots=True)
class SavedPair:
    """Two runs, aligned.

    Attributes:
        a, b: the runs.
        calls, parameters: B's by A's.
        sketched: True if tensors are compared by their sketches.
        reordered: True if B's batch is A's in another order; sketches cannot be compared then.
        accuracy: the accuracy of the numbers of both.
    """

    a: SavedRun
    b: SavedRun
    calls: dict[CallKey, CallKey]
    parameters: dict[str, str]
    sketched: bool
    reordered: bool
    accuracy: Accuracy
    _diffs: dict[TensorKey, TensorDiff | None] = field(default_factory=dict)

    @classmethod
    def of(cls, a: SavedRun, b: SavedRun, match: Sequence[str]) -> SavedPair:
        """Pair two runs; refuses reports that cannot be compared."""
        for one in (a, b):
            if one.report.status == "failed":
                raise OptionError(
                    f"`{one.file}` is the report of a failed run, and incomplete",
                    help="give a report of a complete run",
                )
        renamings = [Renaming(text) for text in match]
        calls = align_calls(a.alike, b.alike, renamings)
        parameters = align_parameters(a.shapes, b.shapes, renamings)
        _refuse_strangers(a, b, calls, parameters)
        accuracy = Accuracy.of(*a.dtypes, *b.dtypes)
        reordered = _reordered(a, b, accuracy)
        return cls(
            *(a, b, {known: call for call, known in calls.items()}),
            parameters={known: name for name, known in parameters.items()},
            sketched=bool(a.sketches) and bool(b.sketches) and not reordered,
            reordered=reordered,
            accuracy=accuracy,
        )

    def diff(self, key: TensorKey) -> TensorDiff | None:
        """Return the difference of one of A's tensors; None if A lacks it."""
        if key not in self._diffs:
            self._diffs[key] = self._compared(key)
        return self._diffs[key]

    def own_noise(self, key: TensorKey, given: Sequence[TensorKey]) -> float | None:
        """Return the noise that a call adds to its output; None if unknown.

        The other part of the noise comes from the call's inputs. If these are nearly equal in both
        runs, they add none.
        """
        diff, diffs = self.diff(key), [self.diff(one) for one in given]
        known = [(one.error, one.noise) for one in diffs if one and one.noise]
        if not self.sketched or diff is None or diff.noise is None or not known:
            return None
        came = max(SKETCH_BITS * (math.inf if error is None else error) / n for error, n in known)
        step = self.accuracy.step
        added = step / max(noise for _, noise in known)
        return max(step, diff.noise * min(1.0, max(came, added)))

    def scale(self, key: TensorKey) -> float:
        """Return the relative scale of B's tensor to A's; 0 if unknown."""
        pair = self.a.sketches.get(key), self.b.sketches.get(self._other(key))
        if pair[0] is None or pair[1] is None or pair[0].numbers == pair[1].numbers:
            return 0.0
        return sketch_scale(pair[0], pair[1], (self.a.file, self.b.file))

    def _other(self, key: TensorKey) -> TensorKey:
        """Return the key of the tensor's counterpart in B."""
        call = None if key.call is None else self.calls.get(key.call)
        path = self.parameters.get(key.path, "") if key.call is None else key.path
        return TensorKey(call, key.kind, path)

    def _compared(self, key: TensorKey) -> TensorDiff | None:
        other = self._other(key)
        statistics = self.a.statistics.get(key), self.b.statistics.get(other)
        sketches = self.a.sketches.get(key), self.b.sketches.get(other)
        # A tensor that B does not return gets no gradient there: attention weights, say.
        tensor = other._replace(kind=other.kind.removeprefix("grad_"))
        missed = "grad" in key.kind and (key.call is None or tensor in self.b.statistics)
        if statistics[0] is not None and statistics[1] is not None:
            if statistics[0].shape != statistics[1].shape:
                note = f"B's shape is {list(statistics[1].shape)}"
                return TensorDiff(note=note, diverges=True)
        elif statistics[0] is not None:
            return TensorDiff(note="B has none", diverges=missed)
        if self.sketched and sketches[0] is not None and sketches[1] is not None:
            return sketch_difference(
                sketches[0], sketches[1], self.accuracy, (self.a.file, self.b.file)
            )
        if not self.sketched and statistics[0] is not None and statistics[1] is not None:
            return statistics_difference(statistics[0], statistics[1], self.accuracy)
        return None


def _reordered(a: SavedRun, b: SavedRun, accuracy: Accuracy) -> bool:
    """Return True if both models got the same numbers in another order."""
    moved = False
    for key in (key for key in a.sketches if key.call == ("", 0) and key.kind == "input"):
        ours, theirs = a.statistics.get(key), b.statistics.get(key)
        if key not in b.sketches or ours is None or theirs is None:
            return False
        exact = (
            (one.shape, one.min, one.max, one.zeros, one.nan, one.inf) for one in (ours, theirs)
        )
        if len({*exact}) > 1 or statistics_difference(ours, theirs, accuracy).diverges:
            return False
        diff = sketch_difference(a.sketches[key], b.sketches[key], accuracy, (a.file, b.file))
        moved |= diff.diverges and ours.shape[:1] > (1,)
    return moved


def _refuse_strangers(
    a: SavedRun, b: SavedRun, calls: Mapping[CallKey, CallKey], parameters: Mapping[str, str]
) -> None:
    """Refuse two models that share only a shape."""
    for one in (a, b):
        if not one.alike and not one.shapes:
            raise OptionError(
                f"`{one.file}` holds no calls and no parameters: there is nothing to compare",
                help="write it again with layers that the model has: `gradscope layers MODEL`",
            )
    inner = [any(name for name, _ in one.alike) for one in (a, b)]
    fewest = min(len(a.shapes), len(b.shapes))
    if (any(inner) and not any(name for name, _ in calls)) or len(parameters) < _LEAST * fewest:
        raise OptionError(
            f"`{a.file}` and `{b.file}` have no layer in common: they are of "
            f"`{a.report.run.model}` and of `{b.report.run.model}`",
            help="compare reports of one model, or of a port of it with `--match 'A=B'`",
        )
