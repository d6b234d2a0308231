"""Whether the gradients of micro-batches add up to those of the full batch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AccumulatedLayer:
    """The parameters of one module, taken as one vector.

    ``error`` is the norm of the difference divided by the norm of the full batch's gradient.
    ``causes`` are the kinds of those without which it would not differ.
    """

    name: str
    parameters: int
    error: float
    causes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AccumulationCause:
    """One reason why micro-batches do not equal the batch.

    ``kind`` is batch-statistics, random-numbers, loss or unknown, ``names`` are modules.
    ``weights`` are, for a loss, what each micro-batch counts in the full batch.
    """

    kind: str
    message: str
    advice: str
    names: tuple[str, ...] = ()
    weights: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Accumulation:
    """The verdict, and every layer with its error, in the order of the model.

    ``sizes`` are the samples of the micro-batches. ``dtype`` is in which it was computed: float64
    on a copy of the model where that runs, else the run's own. An error above ``tolerance`` is no
    rounding.
    """

    equal: bool
    sizes: tuple[int, ...]
    dtype: str
    tolerance: float
    error: float
    layers: tuple[AccumulatedLayer, ...] = ()
    causes: tuple[AccumulationCause, ...] = ()
