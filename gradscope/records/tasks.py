"""The gradients of several losses, each alone, at the parameters that they share."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SharedLayer:
    """The parameters of one module that several losses reach, all of them taken as one vector.

    ``name`` None is all shared parameters of the model. ``parameters`` counts their elements.
    ``norms`` are those of the gradient by loss, ``cosines`` those between two, by pair; None where
    a loss does not reach the layer, or its gradient has no direction (zero, or not finite).
    """

    name: str | None
    parameters: int
    norms: tuple[float | None, ...]
    cosines: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class TaskGradients:
    """``pairs`` are the places of two losses in ``tasks``, in the order of a layer's cosines.

    ``alone`` are the modules that one loss only reaches, each with its name.
    """

    tasks: tuple[str, ...]
    pairs: tuple[tuple[int, int], ...]
    total: SharedLayer
    layers: tuple[SharedLayer, ...] = ()
    alone: tuple[tuple[str, str], ...] = ()
