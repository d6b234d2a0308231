"""Finds a NaN's origin in the part of a graph between the models' calls and the loss.

The script computes these operations, so they cannot be replayed: their nodes are read while the
graph exists.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.graph import Node

from gradscope.capture.graph import LEAF, Edge, Span
from gradscope.explain.non_finite.graph_replay import ReplayedOperation, explain_graph
from gradscope.explain.shared.frames import CallSite, user_line
from gradscope.explain.shared.operations import node_name
from gradscope.records.answers import NonFiniteOrigin

#: Nodes of a loss that are read; one that is longer is a loop over a sequence.
_MOST = 4096


@dataclass(frozen=True, slots=True)
class LossPart:
    """The nodes of a loss in the order of a walk from its roots, and the path to each.

    Attributes:
        parents: for each node, the number of its parent and of the edge from there; for a root, -1
            and its own number.
    """

    nodes: list[Node]
    parents: list[tuple[int, int]]

    @property
    def names(self) -> tuple[str, ...]:
        """The key of the part: its nodes' names."""
        return tuple(map(node_name, self.nodes))


def loss_part(roots: Sequence[torch.Tensor], calls: Sequence[Span]) -> LossPart:
    """Return the nodes upstream of ``roots``, up to the nodes that the calls made."""
    found = LossPart([], [])
    seen: set[Node] = set()
    stack = [(r.grad_fn, (-1, i)) for i, r in enumerate(roots) if r.grad_fn is not None][::-1]
    while stack and len(found.nodes) < _MOST:
        node, parent = stack.pop()
        if node in seen or isinstance(node, LEAF) or _inside(node, calls):
            continue
        seen.add(node)
        number = len(found.nodes)
        found.nodes.append(node)
        found.parents.append(parent)
        for position, (following, _) in reversed([*enumerate(node.next_functions)]):
            if following is not None:
                stack.append((following, (number, position)))
    return found


def _inside(node: Node, calls: Sequence[Span]) -> bool:
    number = node._sequence_nr()
    return any(span.start <= number < span.end for span in calls)


class LossLines:
    """The lines of a loss's operations in the script, learned in steps that keep stacks."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, ...], list[ReplayedOperation]] = {}

    def learn(self, part: LossPart) -> None:
        """Remember the lines of nodes that have their stacks."""
        written = [_written(node) for node in part.nodes]
        if any(one.site.file for one in written):
            self._known[part.names] = written

    def among(self, names: tuple[str, ...], number: int) -> ReplayedOperation:
        """Return the line of a node of a loss.

        If no loss with the same nodes is known, all known nodes of its kind must have one line.
        """
        if names in self._known:
            return self._known[names][number]
        found = {
            line
            for known, written in self._known.items()
            for name, line in zip(known, written, strict=True)
            if name == names[number]
        }
        return found.pop() if len(found) == 1 else ReplayedOperation()


def _written(node: Node) -> ReplayedOperation:
    metadata: Any = node.metadata  # a property, which torch's types take for a method
    stack = metadata.get("traceback_")
    line = user_line(stack) if stack else None
    if line is None:
        return ReplayedOperation()
    file, number, function = line
    # An operator such as `**` has a decorator of torch's, and goes by the node's name.
    named = function and not function.startswith("_") and function != "wrapped"
    public = function if named else None
    return ReplayedOperation(CallSite(None, None, file, number), public)


def explain_loss(
    roots: Sequence[torch.Tensor],
    calls: Sequence[Span],
    known: Mapping[Edge, torch.Tensor],
    lines: LossLines,
) -> tuple[NonFiniteOrigin, ...]:
    """Return the operations of the loss that produced a NaN or Inf, oldest first.

    Args:
        known: the calls' results, by the edges at which they enter the graph.
    """
    part = loss_part(roots, calls)
    lines.learn(part)
    names = part.names
    written = {node: lines.among(names, i) for i, node in enumerate(part.nodes)}
    oldest_first = sorted(part.nodes, key=lambda node: node._sequence_nr())
    return explain_graph(roots, oldest_first, known, written.__getitem__)
