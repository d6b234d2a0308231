"""Verdicts on curves: a gradient that ends where an activation or a softmax is flat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.graph import Node

from gradscope.explain.zero.factors import saved
from gradscope.explain.zero.node_replay import Asked
from gradscope.explain.zero.operations import SOFT

#: A slope below this is an end of the curve.
_GENTLE = 1e-4


@dataclass(frozen=True, slots=True)
class Verdict:
    """One cause at one node. ``why`` is a key of the sentences, ``figures`` fill it in."""

    cause: str | None
    node: Node | None
    why: str
    figures: tuple[tuple[str, Any], ...] = ()

    def figure(self, name: str) -> Any:
        """One of the figures; None where it is not known."""
        return dict(self.figures).get(name)


def curved(asked: Asked, name: str) -> Verdict:
    """Of an activation with a slope everywhere: flat at an end, or too small a product."""
    slopes = asked.slopes()
    steepest = None
    if slopes is not None:
        known = slopes[~slopes.isnan()].abs()
        steepest = float(known.max()) if known.numel() else 0.0
    if steepest is not None and steepest > _GENTLE:
        if asked.passes(asked.scaled()):
            return underflow(asked)
        return Verdict(None, asked.node, "unknown")
    cause = "dead-activation" if name in SOFT else "saturated"
    if name == "Hardsigmoid":
        given = saved(asked.node, "self")
        if given is not None and float(given.max()) <= 0:  # its lower end is 0, as a ReLU's
            cause = "dead-activation"
    return Verdict(cause, asked.node, "flat", flat_figures(asked, slopes))


def normalised(asked: Asked, name: str) -> Verdict:
    """Of a softmax: certain of one entry, or told the same about all."""
    node = asked.node
    result = saved(node, "result")
    certain = False
    if result is not None and result.numel():
        dim = _signed(getattr(node, "_saved_dim", -1), result.dim())
        if result.shape[dim] == 1:
            log = name == "LogSoftmax"
            return Verdict("saturated", node, "single-log" if log else "single")
        top = result.float().amax(dim)
        certain = bool(((top.exp() if name == "LogSoftmax" else top) > 1 - _GENTLE).all())
    if not certain and asked.passes(asked.scaled()):
        return underflow(asked)
    if not certain and asked.passes(asked.weighed()):
        return Verdict(None, node, "constant-sum")
    rows = None if result is None else result.numel() // max(1, result.shape[dim])
    return Verdict("saturated", node, "certain", (("rows", rows),))


def _signed(dim: int, of: int) -> int:
    """A dimension as autograd keeps it: unsigned, where it was counted from the end."""
    dim = dim - 2**64 if dim >= 2**63 else dim
    return dim if -of <= dim < of else -1


def underflow(asked: Asked) -> Verdict:
    """A product of numbers that are not zero, and is."""
    figures = (("largest", asked.largest), ("dtype", asked.dtype))
    return Verdict("underflow", asked.node, "small", figures)


def flat_figures(asked: Asked, slopes: torch.Tensor | None) -> tuple[tuple[str, Any], ...]:
    """How many places and units are flat, and the range of what went in."""
    figures: list[tuple[str, Any]] = [("dtype", asked.dtype)]
    if slopes is not None:
        reached = ~slopes.isnan()
        figures += [("reached", int(reached.sum())), ("places", slopes.numel())]
        if slopes.dim() > 1:
            axis = 1 if slopes.dim() > 3 else slopes.dim() - 1
            touched = reached.movedim(axis, 0).flatten(1).any(1)
            figures += [("units", int(touched.sum())), ("of", touched.numel())]
    given = saved(asked.node, "self")
    if given is not None and given.numel() and given.is_floating_point():
        low, high = (float(end) for end in given.float().aminmax())
        figures += [("low", low), ("high", high)]
    return tuple(figures)
