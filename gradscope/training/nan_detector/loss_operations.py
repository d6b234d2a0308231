"""Finds a NaN's origin in the part of a graph between the models' calls and the loss.

The script computes these operations, so they cannot be replayed: their nodes are read while the
graph exists. When a gradient is found to be NaN or Inf, the graph is gone. So the loss is walked
once, and the path to nodes with a singular derivative is remembered. Each later backward keeps
their saved tensors until the end of the step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.graph import Node

from gradscope.capture.graph import LEAF, Edge, Span
from gradscope.explain.non_finite.graph_replay import ReplayedOperation, SavedNode, explain_graph
from gradscope.explain.shared.frames import CallSite, user_line
from gradscope.explain.shared.node_forward import saved_by
from gradscope.explain.shared.operations import Trait, by_node, node_name
from gradscope.records.answers import NonFiniteOrigin

#: Nodes of a loss that are read; one that is longer is a loop over a sequence.
_OF_LOSS = 4096


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
    while stack and len(found.nodes) < _OF_LOSS:
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
    # The function of an operator such as `**` is a decorator of torch, so the node's name is used.
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


#: Bytes of saved tensors that are kept from one backward.
_KEPT = 8 << 20
#: Nodes that are kept of one loss.
_MOST = 32
#: Number of nodes compared if nothing is kept, to check that the loss is still the same.
_COMPARED = 2
#: Backwards after which a loss is walked again although it looks the same.
_AGAIN = 128
#: Losses of a script that are distinguished.
_PLANS = 8
#: After this many walks, a graph unlike all earlier ones is walked once in this many times.
_WALKS, _SELDOM = 64, 32


@dataclass(slots=True)
class SingularNodes:
    """The nodes of a loss with a singular derivative, and the path to them.

    Attributes:
        made: the number of nodes since the last call returned; another number means another loss.
        path: for each node on the way: the number of the node before it in the path, the edge, the
            expected class, and whether others come after it. For a root the number is -1, and the
            edge is the root's number.
        singular: for each node whose tensors are kept: its number in the path and in the loss, and
            the names of its saved tensors.
    """

    names: tuple[str, ...]
    made: int
    path: list[tuple[int, int, type[Node], bool]]
    singular: list[tuple[int, int, str, tuple[str, ...], int]]
    age: int = 0

    @staticmethod
    def of(part: LossPart, made: int) -> SingularNodes:
        """Return the singular nodes of a loss."""
        wanted = [i for i, node in enumerate(part.nodes) if _singular(node)][:_MOST]
        kept = set(range(min(_COMPARED, len(part.nodes))))
        for number in wanted:
            while number >= 0 and number not in kept:
                kept.add(number)
                number = part.parents[number][0]
        parents = {part.parents[n][0] for n in kept}
        places = {number: place for place, number in enumerate(sorted(kept))}
        path = [
            (
                places.get(part.parents[n][0], -1),
                part.parents[n][1],
                type(part.nodes[n]),
                n in parents,
            )
            for n in sorted(kept)
        ]
        singular = []
        for number in wanted:
            node = part.nodes[number]
            saved = tuple(f"_saved_{name}" for name in saved_by(node))
            edges = len(node.next_functions)
            if saved:
                singular.append((places[number], number, by_node(node).name, saved, edges))
        return SingularNodes(part.names, made, path, singular)

    def follow(self, roots: Sequence[torch.Tensor]) -> list[Node] | None:
        """Return the nodes of the path in the graph of these roots; None if the graph is another
        one."""
        self.age += 1
        if self.age > _AGAIN:
            return None
        nodes: list[Any] = []
        edges: list[Any] = []
        try:
            for before, position, kind, leads in self.path:
                node: Any = roots[position].grad_fn if before < 0 else edges[before][position][0]
                if type(node) is not kind:
                    return None
                nodes.append(node)
                edges.append(node.next_functions if leads else None)
        except IndexError:
            return None
        return nodes


class SingularPlans:
    """The known losses of a script, and the tensors of their singular nodes, ``held`` until the
    step ends."""

    def __init__(self) -> None:
        self._plans: list[SingularNodes] = []
        self.held: list[tuple[SingularNodes, list[dict[str, Any]]]] = []
        self._walks = 0
        self._missed = 0

    def keep(
        self, roots: Sequence[torch.Tensor], made: int, calls: Callable[[], list[Span]]
    ) -> None:
        """Keep the saved tensors of the singular nodes, when a backward from these roots begins."""
        for number, plan in enumerate(self._plans):
            nodes = plan.follow(roots) if plan.made == made else None
            if nodes is not None:
                if number:
                    self._plans.insert(0, self._plans.pop(number))
                break
        else:
            plan, nodes = self._another(roots, made, calls)
        if plan.singular and nodes is not None:
            saved = _saved(plan, nodes)
            if saved:
                self.held.append((plan, saved))

    def _another(
        self, roots: Sequence[torch.Tensor], made: int, calls: Callable[[], list[Span]]
    ) -> tuple[SingularNodes, list[Node] | None]:
        """Return the plan and the nodes of an unknown loss. After many walks, only some unknown
        losses are walked."""
        self._missed += 1
        if self._walks > _WALKS and self._missed % _SELDOM:
            for plan in self._plans:
                if (nodes := plan.follow(roots)) is not None:
                    return plan, nodes
            return self._plans[0], None
        plan = self.learn(loss_part(roots, calls()), made)
        return plan, plan.follow(roots)

    def learn(self, part: LossPart, made: int) -> SingularNodes:
        """Remember the path in a loss."""
        self._walks += 1
        plan = SingularNodes.of(part, made)
        self._plans = [plan, *(p for p in self._plans if p.names != plan.names)][:_PLANS]
        return plan

    def nodes(self, lines: LossLines) -> list[SavedNode]:
        """Return the saved nodes, the latest backward's first."""
        return [
            SavedNode(name, saved, edges, lines.among(plan.names, number))
            for plan, held in reversed(self.held)
            for (_, number, name, _, edges), saved in zip(plan.singular, held, strict=True)
        ]


def _singular(node: Node) -> bool:
    """Return True if finite inputs can give the node an infinite gradient."""
    operation = by_node(node)
    if not operation.has(Trait.SINGULAR):
        return False
    if operation.name == "div":
        # By a number, a division has no second input.
        return any(next_node is not None for next_node, _ in node.next_functions[1:])
    for name in ("exponent", "ord", "p"):
        power = getattr(node, f"_saved_{name}", None)
        if isinstance(power, int | float):
            # PyTorch takes the slope of a norm at 0 to be 0.
            return not (power >= 1 if name == "exponent" else power in (1, 2, math.inf))
    return True


def _saved(plan: SingularNodes, nodes: Sequence[Node]) -> list[dict[str, Any]]:
    """Return the saved tensors of the singular nodes; nothing if they are too large to keep."""
    held, total = [], 0
    for place, _, _, names, _ in plan.singular:
        node = nodes[place]
        saved = {name[7:]: getattr(node, name) for name in names}
        total += sum(v.nbytes for v in saved.values() if isinstance(v, torch.Tensor))
        held.append(saved)
    return held if total <= _KEPT else []
