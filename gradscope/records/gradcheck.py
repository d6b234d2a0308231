"""A layer's backward, compared with finite differences."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GradientCheck:
    """One input, or one parameter, of one call of a layer.

    ``input`` is a path in the arguments, or the parameter's name in the layer. ``verdict`` is
    right, wrong, kink (right beside these inputs only), non-deterministic, or unchecked.
    ``backward`` and ``differences`` are the derivative in one random direction, as the layer's
    backward gives it and as finite differences do; None where they could not be had.
    """

    name: str
    type: str
    call: int
    input: str
    verdict: str
    backward: float | None = None
    differences: float | None = None
    note: str | None = None
