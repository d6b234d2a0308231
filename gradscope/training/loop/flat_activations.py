"""Counts the saturated values of activations, and finds weights that stay zero, in networks that
are written without modules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch.autograd.graph import Node

from gradscope.capture.graph import LEAF
from gradscope.capture.remembered import RememberedTensor, remembered
from gradscope.capture.shards import PLAIN
from gradscope.records.loop_figures import LoopFact
from gradscope.training.discovery import variable_name
from gradscope.training.loop.loss_walk import kind, saved
from gradscope.training.loop.script_lines import written_assignment, written_in_main

#: Beyond these outputs the slope is under 6 % of the steepest: tanh 0.97, sigmoid 0.985.
_MIDDLE = {"TanhBackward": (0.0, 0.97), "SigmoidBackward": (0.5, 0.485)}
#: A larger graph is not walked to its end; fewer values say little.
_NODES, _VALUES = 512, 256


class FlatActivations:
    """Keeps, for each activation by its place in the graph, the smallest share of flat values."""

    def __init__(self) -> None:
        self._readings = 0
        self._shares: dict[int, tuple[str, float]] = {}  # by the number of the activation
        self._graphs = 0
        # In how many graphs a weight was zero.
        self._zero: dict[str, tuple[int, RememberedTensor]] = {}

    def backward_begins(self, roots: Sequence[object]) -> None:
        """Read the graph of a loss whose network has no module; it is complete now."""
        nodes = list(_activations(roots))
        self._graphs += 1
        if self._graphs == 1 or self._zero:
            before, self._zero = self._zero, {}
            for name, leaf in _zero_weights(nodes):
                count, known = before.get(name) or (0, remembered(leaf))
                # A state that each step makes anew, ``h0 = torch.zeros(…)``, is no weight.
                if count + 1 == self._graphs and known() is leaf:
                    self._zero[name] = count + 1, known
        found = [one for one in nodes if kind(one) in _MIDDLE]
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
        for name, (count, _) in self._zero.items():
            yield LoopFact("zero-weight", name, count=count, location=written_assignment(name))


def _zero_weights(nodes: Sequence[Node]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the leaves of a graph with two axes and more that are zero, each with its name in the
    script. One with a gradient that is not zero could move."""
    leaves = {
        id(leaf): leaf
        for node in nodes
        for one, _ in node.next_functions
        if isinstance(one, LEAF) and isinstance(leaf := one.variable, torch.Tensor)
    }
    for leaf in leaves.values():
        plain = type(leaf) in PLAIN and leaf.layout == torch.strided and not leaf.is_meta
        if plain and leaf.dim() > 1 and leaf.numel() and not bool(leaf.detach().any()):
            grad = leaf.grad
            if grad is not None and (grad.layout != torch.strided or bool(grad.detach().any())):
                continue
            name = variable_name(leaf)
            if name is not None:
                yield name, leaf


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
