"""A node of the graph, run again: with the gradient scaled up, which shows an underflow; with its
elements weighed anew, which shows parts that cancel; with ones, which shows where it is flat."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

import torch
from torch.autograd.graph import Node

from gradscope.explain.shared.operations import node_name
from gradscope.explain.zero.node_gradients import Gradients

_NEVER_AGAIN = "CheckpointFunction"  # its backward runs forward again and writes gradients
#: How far a gradient is scaled up: products with the smallest number of the dtype are then seen.
_SCALED = {torch.float16: 2.0**8, torch.bfloat16: 2.0**80, torch.float32: 2.0**80}


class NodeReplay:
    """A node that passed zeros on for what it got, run again with other gradients."""

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
        """Whether something other than zeros comes out for these."""
        sent = self._ask(gradients)
        return sent is not None and bool(sent.any())

    def scaled(self) -> Gradients:
        """The same gradients, larger by a power of two."""
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
        """The scaled gradients, each element by its own factor between 0.5 and 1.5."""
        weights = torch.Generator().manual_seed(0)

        def weigh(g: torch.Tensor) -> torch.Tensor:
            factors = torch.rand(g.shape, generator=weights) + 0.5
            return g * factors.to(g.device, g.dtype if g.is_floating_point() else None)

        return tuple(None if g is None else weigh(g) for g in self.scaled())

    def slopes(self) -> torch.Tensor | None:
        """The local slope of an elementwise operation where a gradient reaches it, else NaN."""
        (got,) = self.got if len(self.got) == 1 else (None,)
        if got is None:
            return None
        slope = self._ask((torch.ones_like(got),))
        if slope is None or slope.shape != got.shape:
            return None
        return torch.where(got != 0, slope, torch.nan)

    @property
    def largest(self) -> float:
        """The largest magnitude that arrived, among finite numbers."""
        sizes = [
            float(finite.abs().max())
            for g in self.got
            if g is not None and (finite := g[torch.isfinite(g)]).numel()
        ]
        return max(sizes, default=0.0)

    @property
    def dtype(self) -> torch.dtype:
        """Of what is sent on: that is where a number may be too small."""
        tensors = [t for t in (self.answer, *self.got) if t is not None]
        return tensors[0].dtype if tensors else torch.float32
