"""One tensor, reduced to numbers, and the norms of parameters and gradients at many steps."""

from __future__ import annotations

import math
import struct
import sys
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gradscope.records.data import SPARSE

#: A number as a record keeps it. Non-finite entries of ``TensorStats.values`` are the strings
#: "nan", "inf" and "-inf", complex ones are ``(real, imaginary)``: JSON has no token for them.
Value = float | str | tuple[float | str, float | str]


@dataclass(frozen=True, slots=True)
class TensorStats:
    """One tensor reduced to numbers.

    ``norm`` is L2, ``std`` is the population's; both and ``mean``, ``min``, ``max`` are taken over
    the finite elements. ``zeros``, ``nan`` and ``inf`` count elements. A number that does not exist
    (the mean of an empty tensor, anything on the ``meta`` device) is None.
    """

    shape: tuple[int, ...]
    dtype: str
    numel: int
    norm: float | None = None
    mean: float | None = None
    std: float | None = None
    min: float | None = None
    max: float | None = None
    zeros: int | None = None
    nan: int | None = None
    inf: int | None = None
    values: tuple[Value, ...] | None = field(default=None, metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class TensorRecord:
    """An input or output of a call, with its values at the time of the call, and its gradient.

    ``path`` is its place in the arguments or the result: ``""`` for a bare tensor, else ``0``,
    ``last_hidden_state``, ``1.boxes``. ``gradient`` is None if none arrived. ``norm_ranks`` and
    ``gradient_ranks`` are the smallest and the largest norm over several processes.
    """

    path: str
    activation: TensorStats
    gradient: TensorStats | None = None
    grad_fn: str | None = None
    requires_grad: bool = False
    norm_ranks: tuple[float, float] | None = field(default=None, metadata=SPARSE)
    gradient_ranks: tuple[float, float] | None = field(default=None, metadata=SPARSE)

    @property
    def grad(self) -> TensorStats | None:
        """``gradient``, by PyTorch's word."""
        return self.gradient


#: Placeholder for the norm of a missing gradient.
NONE = -1.0
#: Smallest norm that float32 holds in full precision.
_SMALLEST = 1.2e-38
#: Period in read steps of a weight's norm; it is taken at the first of each.
VALUES_EVERY = 16


@dataclass(frozen=True, slots=True)
class NormNames:
    """Parameters whose norms are recorded together, in the order of their model.

    Attributes:
        id: its number in the file of one process.
        model: the id of their model.
        names: their own.
    """

    id: int
    model: int
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ParameterNorms:
    """The norms of one step, one number per name; ``unpacked`` reads them.

    Attributes:
        step: its number in the run.
        names: the id of their ``NormNames``.
        number: the number of records of these names so far, with this one.
        gradient: the norm of each gradient after the last backward, without the loss scale;
            None if the script may have changed it before.
        clipped: the norm of each gradient that the optimizer got; None if equal.
        value: the norm of each parameter before the update; None in most steps.
    """

    step: int
    names: int
    number: int
    gradient: bytes | None = None
    clipped: bytes | None = None
    value: bytes | None = None

    @property
    def size(self) -> int:
        """Size of the norms in bytes."""
        return sum(len(one) for one in (self.gradient, self.clipped, self.value) if one)


def packed(norms: Sequence[float]) -> bytes:
    """Pack norms as little-endian numbers of 4 bytes each; of 8 bytes if one is out of float32's
    range."""
    try:
        data = struct.pack(f"<{len(norms)}f", *norms)
    except OverflowError:
        data = b""
    if not data or 0.0 < min([norm for norm in norms if norm > 0.0], default=1.0) < _SMALLEST:
        data = struct.pack(f"<{len(norms)}d", *norms)
    return data


def unpacked(data: bytes, count: int) -> array[float]:
    """Return the norms of ``count`` parameters, in one or in several steps.

    Raises:
        ValueError: the number of bytes does not fit.
    """
    if len(data) not in (4 * count, 8 * count):
        raise ValueError(f"{len(data)} bytes are not the norms of {count} parameters")
    norms: array[float] = array("f" if len(data) == 4 * count else "d", data)
    if sys.byteorder == "big":
        norms.byteswap()
    return norms


@dataclass(frozen=True, slots=True)
class NormSeries:
    """The norms of one parameter over the steps at which its gradient was read.

    If there was no gradient, or if it was not read before clipping, the norm is ``NONE``; with a
    NaN or Inf, it is NaN or Inf.

    Attributes:
        steps: the step numbers; parameters that were read together share them.
        gradient: the norm before clipping, without the loss scale.
        clipped: the norm that the optimizer got.
        value_steps: the steps at which the parameter's norm was read.
        value: the parameter's norm.
    """

    steps: array[int] = field(default_factory=lambda: array("q"))
    gradient: array[float] = field(default_factory=lambda: array("d"))
    clipped: array[float] = field(default_factory=lambda: array("d"))
    value_steps: array[int] = field(default_factory=lambda: array("q"))
    value: array[float] = field(default_factory=lambda: array("d"))

    def of(self, measure: str) -> tuple[array[int], array[float]]:
        """Return a measure of the table ``parameter`` at its steps; empty for other measures."""
        if measure == "value_norm":
            return self.value_steps, self.value
        if measure == "grad_norm":
            return self.steps, self.gradient
        return (self.steps, self.clipped) if measure == "clipped_norm" else (array("q"), array("d"))


def steps_lost(steps: Sequence[int], norms: Sequence[float]) -> list[int]:
    """Return the steps at which a norm is a NaN or Inf."""
    if math.isfinite(sum(norms)):  # nearly always, and many times as fast
        return []
    return [step for step, norm in zip(steps, norms, strict=True) if not math.isfinite(norm)]


#: The measures that a ``NormSeries`` has.
MEASURES = ("grad_norm", "clipped_norm", "value_norm")


def merged(
    measure: str, steps: Sequence[int], values: Sequence[float | None], norms: NormSeries | None
) -> dict[int, float | None]:
    """Return a measure by step, from the samples and from the steps whose gradients were read.

    In a step with both, the sample wins; they differ only by rounding.
    """
    read, known = norms.of(measure) if norms is not None else ((), ())
    found = dict(zip(read, map(number_or_none, known), strict=True))
    for step, value in zip(steps, values, strict=True):
        if value is not None or step not in found:
            found[step] = value
    return found


def merged_table(
    steps: Sequence[int], values: Mapping[str, Sequence[float | None]], norms: NormSeries | None
) -> tuple[tuple[int, ...], dict[str, tuple[float | None, ...]]]:
    """Return all measures over the steps of samples and of norms; None if there is none."""
    if norms is None or not norms.steps:
        return tuple(steps), {key: tuple(column) for key, column in values.items()}
    nothing = (None,) * len(steps)
    every = sorted({*steps, *norms.steps, *norms.value_steps})
    found = {}
    for key in dict.fromkeys((*values, *MEASURES)):
        known = merged(key, steps, values.get(key, nothing), norms)
        found[key] = tuple(map(known.get, every))
    return tuple(every), found


def number_or_none(norm: float) -> float | None:
    """Return the norm for tables: None if it is missing or not finite."""
    return norm if 0.0 <= norm < math.inf else None


def finite_or_none(value: float | None) -> float | None:
    """Return the value; None for NaN and Inf, which JSON and SQLite do not have."""
    return value if value is not None and math.isfinite(value) else None
