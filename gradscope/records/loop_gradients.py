"""The gradients of a training loop: how they are clipped, and how they shrink over depth."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LoopClipping:
    """How the gradients of an optimizer are clipped.

    Attributes:
        optimizer: its name.
        clips: how often they were clipped, or read; of the last ``known`` the factor is known.
        shortened: how many of these were made smaller.
        factor: the median factor by which they were, 1 where they were not.
        bound: what they were clipped to; None if the script clips with its own code.
        location: where.
    """

    optimizer: str
    clips: int
    known: int
    shortened: int
    factor: float
    bound: float | None = None
    location: str | None = None


@dataclass(frozen=True, slots=True)
class LayerGradient:
    """A layer with a weight, in the order of forward.

    Attributes:
        name: the module's.
        ratio: the largest gradient over weight, in norms, of this layer and those before it, over
            the largest of those downstream: of both the root mean square over all samples.
    """

    name: str
    ratio: float


@dataclass(frozen=True, slots=True)
class LoopDepth:
    """How the gradients of a model shrink over depth, in the samples of one optimizer's steps.

    Attributes:
        model: its number in the run.
        optimizer: the optimizer's name.
        samples: how many there were.
        layers: in the order of forward, but for the last.
        last: the name of the last.
    """

    model: int
    optimizer: str
    samples: int
    layers: tuple[LayerGradient, ...]
    last: str
