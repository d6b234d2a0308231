"""The distribution of a tensor's values, in bins that are the same for every tensor."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts of elements by sign and power of two.

    Bin ``i`` holds the elements with ``2**(first + i) <= |x| < 2**(first + i + 1)``; ``negative``
    and ``positive`` have one count a bin, from the lowest bin with an element to the highest.
    Zeros, NaN and Inf lie in no bin.

    ``kind`` is "activation" or "gradient", of a call's output at ``path``; or "value" or "gradient"
    of the parameter ``path``, where ``call`` is None.
    """

    name: str
    kind: str
    path: str
    numel: int
    call: int | None = None
    first: int = 0
    negative: tuple[int, ...] = ()
    positive: tuple[int, ...] = ()
    zeros: int = 0
    nan: int = 0
    inf: int = 0
