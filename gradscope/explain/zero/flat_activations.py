"""Runs a node again with other gradients, to find out whether an activation or softmax is flat."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.graph import Node

from gradscope.explain.shared.operations import Operation, Trait, node_name
from gradscope.explain.zero.factors import saved
from gradscope.explain.zero.traces import Gradients

_NEVER_AGAIN = "CheckpointFunction"  # its backward runs forward again and writes gradients
#: How far a gradient is scaled up: products with the smallest number of the dtype are then seen.
_SCALED = {torch.float16: 2.0**8, torch.bfloat16: 2.0**80, torch.float32: 2.0**80}


class NodeReplay:
    """A node that passed zeros on, run again with other gradients."""

    def __init__(self, node: Node, position: int, got: Gradients) -> None:
        self.node, self.position, self.got = node, position, got
        following = node.next_functions[position][0]
        self.answer = self._ask(got)
        given = self.answer
        self.empty = given is not None and given.numel() == 0 and following is not None

    def _ask(self, gradients: Gradients) -> torch.Tensor | None:
        if _NEVER_AGAIN in node_name(self.node):
            return None
        call: Any = self.node  # torch's types do not say that a node can be called
        with torch.no_grad(), suppress(RuntimeError, NotImplementedError, TypeError):
            sent = call(*gradients)
            several = sent if isinstance(sent, tuple) else (sent,)
            one = several[self.position]
            return one if isinstance(one, torch.Tensor) else None
        return None

    def passes(self, gradients: Gradients) -> bool:
        """Return True if these gradients give an input gradient other than zeros."""
        sent = self._ask(gradients)
        return sent is not None and bool(sent.any())

    def scaled(self) -> Gradients:
        """Return the same gradients, multiplied by a power of two."""
        most = self.largest
        if not most:
            return self.got

        def larger(g: torch.Tensor) -> torch.Tensor:
            goal = _SCALED.get(g.dtype, 2.0**80)
            power = round(math.log2(goal / most))
            # In two steps, for the full power may be more than the dtype holds.
            return g * 2.0 ** (power // 2) * 2.0 ** (power - power // 2)

        return tuple(None if g is None else larger(g) for g in self.got)

    def weighed(self) -> Gradients:
        """Return the scaled gradients, with a factor between 0.5 and 1.5 for each element."""
        weights = torch.Generator().manual_seed(0)

        def weigh(g: torch.Tensor) -> torch.Tensor:
            factors = torch.rand(g.shape, generator=weights) + 0.5
            return g * factors.to(g.device, g.dtype if g.is_floating_point() else None)

        return tuple(None if g is None else weigh(g) for g in self.scaled())

    def slopes(self) -> torch.Tensor | None:
        """Return the local slope of an elementwise operation at each element that a gradient
        reaches, else NaN."""
        (got,) = self.got if len(self.got) == 1 else (None,)
        if got is None:
            return None
        slope = self._ask((torch.ones_like(got),))
        if slope is None or slope.shape != got.shape:
            return None
        return torch.where(got != 0, slope, torch.nan)

    @property
    def largest(self) -> float:
        """The largest finite magnitude of the arriving gradient."""
        sizes = [
            float(finite.abs().max())
            for g in self.got
            if g is not None and (finite := g[torch.isfinite(g)]).numel()
        ]
        return max(sizes, default=0.0)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the sent gradient, in which a number may be too small."""
        tensors = [t for t in (self.answer, *self.got) if t is not None]
        return tensors[0].dtype if tensors else torch.float32


#: A slope below this is an end of the curve.
_GENTLE = 1e-4


@dataclass(frozen=True, slots=True)
class ZeroCause:
    """One cause at one node.

    ``why`` is the key of its sentence, and ``figures`` has the numbers in it.
    """

    kind: str | None
    node: Node | None
    why: str
    figures: tuple[tuple[str, Any], ...] = ()

    def figure(self, name: str) -> Any:
        """Return one of the figures; None if unknown."""
        return dict(self.figures).get(name)


def curved(replay: NodeReplay, operation: Operation) -> ZeroCause:
    """Return the cause at an activation that is nowhere exactly flat: a flat end, or too small a
    product."""
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
    """Return the cause at a softmax: certain of one entry, or an equal gradient for all."""
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
    """Return a dimension with its sign: autograd keeps one that counts from the end as unsigned."""
    dim = dim - 2**64 if dim >= 2**63 else dim
    return dim if -of <= dim < of else -1


def underflow(replay: NodeReplay) -> ZeroCause:
    """Return the cause of zeros that are products of nonzero numbers: underflow."""
    figures = (("largest", replay.largest), ("dtype", replay.dtype))
    return ZeroCause("underflow", replay.node, "small", figures)


def flat_figures(replay: NodeReplay, slopes: torch.Tensor | None) -> tuple[tuple[str, Any], ...]:
    """Return the number of flat places and units, and the range of the input."""
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
