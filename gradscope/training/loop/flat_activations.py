"""Counts the saturated values of activations in networks that are written without modules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch.autograd.graph import Node

from gradscope.capture.graph import LEAF
from gradscope.records.loop_figures import LoopFact
from gradscope.training.loop.loss_walk import kind, saved
from gradscope.training.loop.script_lines import written_in_main

#: Beyond these outputs the slope is under 6 % of the steepest: tanh 0.97, sigmoid 0.985.
_MIDDLE = {"TanhBackward": (0.0, 0.97), "SigmoidBackward": (0.5, 0.485)}
#: A larger graph is not walked to its end; fewer values say little.
_NODES, _VALUES = 512, 256


class FlatActivations:
    """Keeps, for each activation by its place in the graph, the smallest share of flat values."""

    def __init__(self) -> None:
        self._readings = 0
        self._shares: dict[int, tuple[str, float]] = {}  # by the number of the activation

    def backward_begins(self, roots: Sequence[object]) -> None:
        """Read the graph of a loss whose network has no module; it is complete now."""
        found = [one for one in _activations(roots) if kind(one) in _MIDDLE]
        # A graph with another number of activations is another network's.
        if not found or (self._readings and len(found) != len(self._shares)):
            return
        self._readings += 1
        for number, node in enumerate(found):
            share = _flat(node)
            _, least = self._shares.get(number, ("", 1.0))
            self._shares[number] = kind(node).removesuffix("Backward").lower(), min(least, share)

    def facts(self) -> Iterator[LoopFact]:
        """Yield the activations, the loss's nearest first, with the first line that calls one of
        the name."""
        for name, share in self._shares.values():
            line = written_in_main(rf"\b{name}\(")
            yield LoopFact("flat", name, count=self._readings, figures=(share,), location=line)


def _activations(roots: Sequence[object]) -> Iterator[Node]:
    """Yield the nodes of a graph up to a limit, the loss's nearest first."""
    queue = [root.grad_fn for root in roots if isinstance(root, torch.Tensor) and root.grad_fn]
    seen = set(queue)
    for node in queue:  # it grows
        yield node
        following = dict.fromkeys(one for one, _ in node.next_functions if one is not None)
        more = {one for one in following if not isinstance(one, LEAF)} - seen
        if len(seen) + len(more) <= _NODES:
            seen |= more
            queue += [one for one in following if one in more]


def _flat(node: Node) -> float:
    """Return the share of an activation's values at its flat ends; 0 if there are few values."""
    result = saved(node).get("result")
    if result is None or result.numel() < _VALUES or not result.is_floating_point():
        return 0.0
    middle, half = _MIDDLE[kind(node)]
    return float(((result.detach() - middle).abs() > half).double().mean())
