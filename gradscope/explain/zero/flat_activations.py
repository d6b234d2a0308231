"""Verdicts on curves: a gradient that ends where an activation or a softmax is flat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.graph import Node

from gradscope.explain.shared.operations import Operation, Trait
from gradscope.explain.zero.factors import saved
from gradscope.explain.zero.node_replay import NodeReplay

#: A slope below this is an end of the curve.
_GENTLE = 1e-4


@dataclass(frozen=True, slots=True)
class ZeroCause:
    """One cause at one node. ``why`` is a key of the sentences, ``figures`` fill it in."""

    kind: str | None
    node: Node | None
    why: str
    figures: tuple[tuple[str, Any], ...] = ()

    def figure(self, name: str) -> Any:
        """One of the figures; None where it is not known."""
        return dict(self.figures).get(name)


def curved(replay: NodeReplay, operation: Operation) -> ZeroCause:
    """Of an activation with a slope everywhere: flat at an end, or too small a product."""
    slopes = replay.slopes()
    steepest = None
    if slopes is not None:
        known = slopes[~slopes.isnan()].abs()
        steepest = float(known.max()) if known.numel() else 0.0
    if steepest is not None and steepest > _GENTLE:
        if replay.passes(replay.scaled()):
            return underflow(replay)
        return ZeroCause(None, replay.node, "unknown")
    kind = "dead-activation" if operation.has(Trait.SOFT) else "saturated"
    if operation.name == "hardsigmoid":
        given = saved(replay.node, "self")
        if given is not None and float(given.max()) <= 0:  # its lower end is 0, as a ReLU's
            kind = "dead-activation"
    return ZeroCause(kind, replay.node, "flat", flat_figures(replay, slopes))


def normalised(replay: NodeReplay, operation: Operation) -> ZeroCause:
    """Of a softmax: certain of one entry, or given the same gradient for all."""
    node, log = replay.node, operation.has(Trait.LOGITS)
    result = saved(node, "result")
    certain = False
    if result is not None and result.numel():
        dim = _signed(getattr(node, "_saved_dim", -1), result.dim())
        if result.shape[dim] == 1:
            return ZeroCause("saturated", node, "single-log" if log else "single")
        top = result.float().amax(dim)
        certain = bool(((top.exp() if log else top) > 1 - _GENTLE).all())
    if not certain and replay.passes(replay.scaled()):
        return underflow(replay)
    if not certain and replay.passes(replay.weighed()):
        return ZeroCause(None, node, "constant-sum")
    rows = None if result is None else result.numel() // max(1, result.shape[dim])
    return ZeroCause("saturated", node, "certain", (("rows", rows),))


def _signed(dim: int, of: int) -> int:
    """A dimension as autograd keeps it: unsigned, where it was counted from the end."""
    dim = dim - 2**64 if dim >= 2**63 else dim
    return dim if -of <= dim < of else -1


def underflow(replay: NodeReplay) -> ZeroCause:
    """A product of numbers that are not zero, and is."""
    figures = (("largest", replay.largest), ("dtype", replay.dtype))
    return ZeroCause("underflow", replay.node, "small", figures)


def flat_figures(replay: NodeReplay, slopes: torch.Tensor | None) -> tuple[tuple[str, Any], ...]:
    """How many places and units are flat, and the range of what went in."""
    figures: list[tuple[str, Any]] = [("dtype", replay.dtype)]
    if slopes is not None:
        reached = ~slopes.isnan()
        figures += [("reached", int(reached.sum())), ("places", slopes.numel())]
        if slopes.dim() > 1:
            axis = 1 if slopes.dim() > 3 else slopes.dim() - 1
            touched = reached.movedim(axis, 0).flatten(1).any(1)
            figures += [("units", int(touched.sum())), ("of", touched.numel())]
    given = saved(replay.node, "self")
    if given is not None and given.numel() and given.is_floating_point():
        low, high = (float(end) for end in given.float().aminmax())
        figures += [("low", low), ("high", high)]
    return tuple(figures)
