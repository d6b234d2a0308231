"""What a narrower dtype would lose."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PrecisionForecast:
    """What a cast would do to one tensor's non-zero elements, as shares from 0 to 1.

    ``kind`` is "activation" or "gradient"; a gradient is multiplied by ``scale``, the loss scale,
    before the cast. ``name`` is a module with its ``call``, or a parameter, which has none.
    ``numel`` counts the elements that the shares are of. "total" is all gradients together, named
    "**": ``underflow`` of the parameters', ``overflow`` of the calls' outputs as well.
    """

    name: str
    kind: str
    dtype: str
    scale: float
    numel: int
    underflow: float
    overflow: float
    call: int | None = None
