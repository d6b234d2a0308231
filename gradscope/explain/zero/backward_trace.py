"""Traces one backward, edge by edge: where a gradient goes in and only zeros come out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.autograd.graph import Node

from gradscope.capture.graph import LEAF
from gradscope.capture.hooks import Handle, change_node
from gradscope.capture.nodes import ordered
from gradscope.explain.zero.node_gradients import (
    BackwardOptions,
    Gradients,
    NodeGradients,
    any_nonzero,
    reading_hook,
)


@dataclass(frozen=True, slots=True)
class ZeroPoint:
    """Where a gradient ends, seen from what is upstream of it.

    Attributes:
        node: the operation that gets a gradient and passes zeros on; for ``sum`` the node at which
            contributions that are not zero add up to zero.
        position: which of its inputs the zeros go to.
        kind: ``op``, ``sum``, or ``start`` where the gradient that backward begins with is zero.
        consumers: for ``sum``, the operations whose contributions were added.
    """

    node: Node
    position: int
    kind: str = "op"
    consumers: tuple[Node, ...] = ()


@dataclass(slots=True)
class BackwardTrace:
    """The graph upstream of a loss, and what ``backward`` brings to it."""

    root: Node
    nodes: list[Node] = field(default_factory=list)
    _number: dict[Node, int] = field(default_factory=dict)
    _passed: list[NodeGradients] = field(default_factory=list)
    _consumers: list[list[tuple[int, int]]] = field(default_factory=list)
    _handles: list[Handle] = field(default_factory=list)
    #: Of the nodes that a checkpoint made in backward: the checkpoint's own node.
    around: dict[Node, Node] = field(default_factory=dict)
    #: The gradients of leaves, where they are not in their ``.grad``.
    received: Mapping[torch.Tensor, torch.Tensor | None] | None = None
    _wrapped: list[tuple[Any, Callable[..., Any]]] = field(default_factory=list)
    _options: BackwardOptions = field(default_factory=BackwardOptions)

    def __post_init__(self) -> None:
        self._add([self.root])

    def _add(self, roots: list[Node]) -> list[Node]:
        fresh = [node for node in ordered(roots) if node not in self._number]
        for node in fresh:
            self._number[node] = len(self.nodes)
            self.nodes.append(node)
            self._passed.append(NodeGradients())
            self._consumers.append([])
        for node in fresh:
            number = self._number[node]
            for position, (following, _) in enumerate(node.next_functions):
                if following is not None:
                    self._consumers[self._number[following]].append((number, position))
            if not isinstance(node, LEAF):
                hook = reading_hook(self._passed[number], self._options)
                self._handles.append(change_node(node, hook))
            if type(node).__name__ == "CheckpointFunctionBackward":
                self._follow(node, number)
        return fresh

    def backward(self, run: Callable[[], None], *, short: bool) -> None:
        """Run backward; ``short`` stops each gradient where it becomes zero.

        Behind a zero-initialised head that is all of the network. The engine hands on nothing
        instead of zeros, and so no operation upstream computes; a hook, or a function of the user's
        own, may not take nothing for an answer, and then all of it is run.
        """
        self._options.short = short and not self._wrapped
        try:
            run()
        except Exception:
            if not self._options.short:
                raise
            self._options.short = False
            self._forget()
            run()

    def _forget(self) -> None:
        for node, passed in zip(self.nodes, self._passed, strict=True):
            passed.arrived, passed.given, passed.kept = False, (), ()
            if isinstance(node, LEAF):
                node.variable.grad = None

    def release(self) -> list[Node]:
        """Remove every hook and forget the gradients; the nodes are the caller's to let go."""
        for handle in self._handles:
            handle.remove()
        for node, original in self._wrapped:
            node.run_function = original
        for passed in self._passed:
            passed.kept = ()
        nodes, self.nodes = self.nodes, []
        self._number.clear()
        self.around.clear()
        self._handles.clear()
        self._wrapped.clear()
        return nodes

    def consumers(self, node: Node) -> list[Node]:
        """The operations that take what a node made."""
        return [self.nodes[number] for number, _ in self._consumers[self._number[node]]]

    def gradients(self, node: Node) -> Gradients:
        """What arrived at a node that passed zeros on."""
        return self._passed[self._number[node]].kept

    def points(self) -> dict[torch.Tensor, list[ZeroPoint]]:
        """For every leaf whose gradient is zero: where the gradients on the way to it end."""
        found: list[ZeroPoint] = []
        bits: dict[ZeroPoint, int] = {}
        masks = [0] * len(self.nodes)
        leaves: dict[torch.Tensor, int] = {}
        for node in self._from_the_loss():
            number = self._number[node]
            if self._has_gradient(node, number):
                continue
            ends = self._zero_points(node, number)
            for point in ends:
                if point not in bits:
                    bits[point] = 1 << len(found)
                    found.append(point)
                masks[number] |= bits[point]
            if not any(point.kind == "sum" for point in ends):
                for consumer, _ in self._consumers[number]:
                    masks[number] |= masks[consumer]
            if isinstance(node, LEAF):
                leaves[node.variable] = leaves.get(node.variable, 0) | masks[number]
        return {
            leaf: [point for i, point in enumerate(found) if mask >> i & 1]
            for leaf, mask in leaves.items()
        }

    def _from_the_loss(self) -> list[Node]:
        """Every node after those that give it its gradient; a checkpoint's graph after its node."""
        if not self.around:
            return self.nodes
        return _ordered_again(self.nodes, self._consumers)

    def _has_gradient(self, node: Node, number: int) -> bool:
        if isinstance(node, LEAF):
            leaf, received = node.variable, self.received
            gradient = leaf.grad if received is None else received.get(leaf)
            return gradient is not None and any_nonzero(gradient)
        return self._passed[number].arrived

    def _zero_points(self, node: Node, number: int) -> list[ZeroPoint]:
        """The ends of gradients right before a node to which nothing but zeros come."""
        if node is self.root:
            return [ZeroPoint(node, 0, "start")]
        given = []
        for consumer, position in self._consumers[number]:
            passed = self._passed[consumer]
            gave = passed.given[position] if 0 <= position < len(passed.given) else None
            given.append((consumer, position, passed.arrived, gave))
        added = tuple(self.nodes[c] for c, _, _, gave in given if gave)
        if added:
            return [ZeroPoint(node, 0, "sum", added)]
        return [
            ZeroPoint(self.nodes[consumer], position)
            for consumer, position, arrived, gave in given
            if arrived and gave is not None
        ]

    # ---------------------------------------------------------------- reentrant checkpoints

    def _follow(self, node: Any, number: int) -> None:
        """When the checkpoint runs its function again, the graph of that run is joined in."""
        original = node.run_function

        def run_function(*inputs: Any) -> Any:
            outputs = original(*inputs)
            several = outputs if isinstance(outputs, tuple | list) else (outputs,)
            made = [t.grad_fn for t in several if isinstance(t, torch.Tensor) and t.grad_fn]
            fresh = self._add([one for one in made if one is not None])
            for one in made:
                if one is not None:
                    # Its gradient is what the checkpoint's own node got.
                    self._consumers[self._number[one]].append((number, -1))
            self._joined(number, inputs, fresh)
            return outputs

        node.run_function = run_function
        self._wrapped.append((node, original))

    def _joined(self, number: int, inputs: tuple[Any, ...], fresh: list[Node]) -> None:
        """What led to the checkpoint's input leads to those who take it inside."""
        self.around.update(dict.fromkeys(fresh, self.nodes[number]))
        outer = self.nodes[number].next_functions
        given = [t for t in inputs if isinstance(t, torch.Tensor)]
        edges = {id(t): edge[0] for t, edge in zip(given, outer, strict=False)}
        for node in fresh:
            producer = edges.get(id(node.variable)) if isinstance(node, LEAF) else None
            if producer is None:
                continue
            consumers = self._consumers[self._number[producer]]
            consumers[:] = [pair for pair in consumers if pair[0] != number]
            consumers += self._consumers[self._number[node]]


def _ordered_again(nodes: list[Node], consumers: list[list[tuple[int, int]]]) -> list[Node]:
    """Each node after all its consumers."""
    waiting = [len({c for c, _ in before}) for before in consumers]
    leads: list[list[int]] = [[] for _ in nodes]
    for i, before in enumerate(consumers):
        for consumer in {c for c, _ in before}:
            leads[consumer].append(i)
    ready = [i for i, count in enumerate(waiting) if not count]
    order = []
    while ready:
        i = ready.pop()
        order.append(nodes[i])
        for following in leads[i]:
            waiting[following] -= 1
            if not waiting[following]:
                ready.append(following)
    return order
