"""Replays untraced operations under a tracer, from the tensors that their nodes saved.

``explain_graph`` replays a graph. ``explain_singular_derivatives`` replays single operations whose
graph is gone. No frame shows an operation's line in the script, so the line is set beforehand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import Node

from gradscope.capture.graph import LEAF, Edge
from gradscope.explain.non_finite.arithmetic import reason_of, unseen_element
from gradscope.explain.non_finite.operation_tracer import NonFiniteTracer
from gradscope.explain.non_finite.origins import ObservedOrigin, records
from gradscope.explain.non_finite.reasons import INF, NonFiniteResult, Reason, broken, level
from gradscope.explain.shared.frames import CallSite
from gradscope.explain.shared.node_forward import (
    NodeForward,
    bound,
    fits,
    forwards,
    result_of,
    saved_by,
    undone,
)
from gradscope.explain.shared.operations import by_node, node_name
from gradscope.explain.shared.tracing_modes import ModuleCalls
from gradscope.records.answers import NonFiniteOrigin


@dataclass(frozen=True, slots=True)
class ReplayedOperation:
    """Place of a node's operation in the script, and the PyTorch function that ran it."""

    site: CallSite = field(default_factory=CallSite)
    function: str | None = None


class ReplayedLines(ModuleCalls):
    """Replaces ``ModuleCalls``: a running operation has the line that was set."""

    def __init__(self) -> None:
        module = nn.Module()
        super().__init__(module, ReplayedLines.__init__.__code__)
        self.called.add(module)  # what runs outside of it now is the loss's
        self.at = CallSite()
        self._module = module

    def site(self, frame: Any = None) -> CallSite:
        """Return the place of the current operation."""
        return self.at

    def tracer(self) -> NonFiniteTracer:
        """Return a tracer that gets the lines of operations from this object."""
        return NonFiniteTracer(self._module, self.last, calls=self)


#: Operations that put a number, which their nodes do not keep, among those of a tensor.
_PUTS = ("masked_fill", "where", "index_fill", "index_put", "constant_pad_nd", "copy_slices")
_OWN = "a custom function, which is not replayed"
_FINITE_INSTEAD = "use a large finite number instead"


def explain_graph(
    roots: Sequence[torch.Tensor],
    nodes: Sequence[Node],
    known: Mapping[Edge, torch.Tensor],
    written: Callable[[Node], ReplayedOperation],
) -> tuple[NonFiniteOrigin, ...]:
    """Return the operations of a graph that made a NaN or Inf from finite numbers, oldest first.

    Args:
        roots: the ends of the graph, such as the loss.
        nodes: the nodes to replay, oldest first; their saved tensors must still exist.
        known: values by the edges at which the graph begins.
        written: the place of each node's operation.
    """
    replay = _Replay(written, known)
    replay.foresee(roots, nodes)
    for node in nodes:
        replay.run(node)
    for root in roots:
        replay.ends(root)
    return records((o for o in replay.tracer.origins.reported() if o is not replay.given), ())


class _Replay:
    """Runs the nodes of a graph forward, one by one, under the tracer."""

    def __init__(
        self, written: Callable[[Node], ReplayedOperation], known: Mapping[Edge, torch.Tensor]
    ) -> None:
        self.written = written
        self.places = ReplayedLines()
        self.tracer = self.places.tracer()
        self.values: dict[Edge, torch.Tensor] = dict(known)
        self.foreseen: dict[Edge, torch.Tensor] = {}
        #: The origins of the inputs of an operation with unknown output.
        self.carried: dict[Edge, int] = {}
        #: The user's own functions among those.
        self.own: dict[Edge, str] = {}
        self.given = self._enter(known.values())

    def _enter(self, known: Iterable[torch.Tensor]) -> ObservedOrigin | None:
        """Register the values at the roots of the graph; a NaN or Inf in them is not reported
        here."""
        broken = [tensor for tensor in known if level(tensor)]
        worst = max(map(level, broken), default=0)
        given = ObservedOrigin(
            worst, "forward", None, CallSite(), Reason("given"), deliberate=worst == INF
        )
        for tensor in broken:
            self.tracer.origins.put(tensor, self.tracer.origins.add(given), overwritten=True)
        return given if broken else None

    def foresee(self, roots: Sequence[torch.Tensor], nodes: Iterable[Node]) -> None:
        """Note inputs saved by nodes: they replace operations that cannot run again."""
        self.foreseen = {(r.grad_fn, r.output_nr): r.detach() for r in roots if r.grad_fn}
        for node in nodes:
            for forward in islice(forwards(node), 1):
                for name, positions in forward.edges.items():
                    value = forward.arguments.get(name)
                    following, number = node.next_functions[positions[0]]
                    if following is not None and isinstance(value, torch.Tensor):
                        self.foreseen.setdefault((following, number), value.detach())

    def run(self, node: Node) -> None:
        """Run a node's operation; if that is impossible, take values saved by nodes."""
        at = self.written(node)
        self.places.at = at.site
        with torch.no_grad():
            results = self._results(node, at.function or by_node(node).name)
            for number, result in enumerate(results):
                self.values[node, number] = result
            if not results:
                self._unseen(node, at)

    def ends(self, root: torch.Tensor) -> None:
        """Mark the origins that reached a root as having reached the loss."""
        value = root if root.grad_fn is None else self.values.get((root.grad_fn, root.output_nr))
        with self.tracer.quiet():
            if value is not None:
                self.tracer.external.stays(value, "loss")

    def _results(self, node: Node, function: str) -> tuple[torch.Tensor, ...]:
        for forward in forwards(node):
            given = self._given(node, forward)
            if given is None:
                continue
            try:
                with self.tracer.replaying(function):
                    results = forward.run(given)
            except (RuntimeError, TypeError, NotImplementedError, IndexError):
                continue  # another operation of this name
            if fits(node, results):
                return results
        return ()

    def _given(self, node: Node, forward: NodeForward) -> dict[str, Any] | None:
        """Return the values on the edges; None if one is unknown."""
        given: dict[str, Any] = {}
        for name, positions in forward.edges.items():
            values = [self.value(node, position) for position in positions]
            if all(value is not None for value in values):
                several = len(values) > 1 or name == "tensors"
                given[name] = values if several else values[0]
            elif name in forward.missing:
                return None
        return given

    def value(self, node: Node, position: int) -> torch.Tensor | None:
        """Return the value on an edge into a node's operation."""
        following, number = node.next_functions[position]
        if following is None:
            return None
        if isinstance(following, LEAF):
            leaf: torch.Tensor = following.variable
            return leaf.detach()
        return self.values.get((following, number))

    def _unseen(self, node: Node, at: ReplayedOperation) -> None:
        """Note the output of an operation that did not run again, if its value is known."""
        result = result_of(saved_by(node))
        origins = self._origins(node)
        for number in range(len(node._input_metadata)):
            edge = node, number
            value = self.foreseen.get(edge, result if number == 0 else None)
            if value is None:
                self.carried[edge] = origins
                self.own[edge] = self._own(node)
                continue
            self.values[edge] = value
            with self.tracer.quiet():
                found = level(value)
                if found:
                    mask = origins or self._made(node, at, value, found)
                    self.tracer.origins.put(value, mask, overwritten=True)

    def _origins(self, node: Node) -> int:
        """Return the origins among the inputs of a node; unknown inputs count."""
        mask = 0
        for position, (following, number) in enumerate(node.next_functions):
            value = self.value(node, position)
            if value is not None and level(value):
                mask |= self.tracer.origins.of(value)
            elif value is None and following is not None:
                mask |= self.carried.get((following, number), 0)
        return mask

    def _own(self, node: Node) -> str:
        """Return the custom autograd function of a node, or the one that hides it."""
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            return node_name(node)
        return next(
            filter(None, (self.own.get((n, i), "") for n, i in node.next_functions if n)), ""
        )

    def _made(self, node: Node, at: ReplayedOperation, value: torch.Tensor, found: int) -> int:
        """Return an origin of which only the result is known."""
        if own := self._own(node):
            return self.tracer.origins.add(
                ObservedOrigin(found, "loss", own, at.site, Reason(_OWN, count=None))
            )
        name = by_node(node).name
        put = found == INF and name in _PUTS
        if put:
            number = value[torch.isinf(value)][0].item()
            reason = Reason(f"{number} in the source", _FINITE_INSTEAD)
        else:
            result = NonFiniteResult(name, {}, value, found, True)
            reason = unseen_element(result) or reason_of(result)
            reason = replace(reason, count=int(broken(value, found).sum()), total=value.numel())
        op = at.function or name
        return self.tracer.origins.add(
            ObservedOrigin(found, "loss", op, at.site, reason, deliberate=put)
        )


@dataclass(frozen=True, slots=True)
class SavedNode:
    """A node with a possibly infinite derivative; its saved tensors outlive its graph.

    Attributes:
        name: the operation's name.
        edges: the number of edges to its inputs.
    """

    name: str
    saved: Mapping[str, Any]
    edges: int
    written: ReplayedOperation


def explain_singular_derivatives(nodes: Iterable[SavedNode]) -> tuple[NonFiniteOrigin, ...]:
    """Return the operations whose derivative at their saved inputs is NaN or Inf, the latest first.
    Each is run again alone, with a gradient of ones."""
    places = ReplayedLines()
    tracer = places.tracer()
    for kept in nodes:
        places.at = kept.written.site
        for forward in bound(kept.name, kept.saved, kept.edges):
            if _back_and_forth(tracer, kept, forward):
                break
    return records(tracer.origins.reported(), ())


def _back_and_forth(tracer: NonFiniteTracer, kept: SavedNode, forward: NodeForward) -> bool:
    """Run the operation forward and backward; return True if it ran."""
    leaves: dict[str, torch.Tensor] = {}
    for name in forward.edges:
        value = forward.arguments.get(name, undone(kept.name, kept.saved))
        if not isinstance(value, torch.Tensor):
            return False
        leaves[name] = value.detach().clone().requires_grad_()
    try:
        tracer.context.stage = "forward"
        with torch.enable_grad(), tracer.replaying(kept.written.function or kept.name):
            results = forward.run(leaves)
        roots = [result for result in results if result.requires_grad]
        tracer.context.stage = "backward"
        with tracer.replaying(None):
            torch.autograd.backward(roots, [torch.ones_like(root) for root in roots])
    except (RuntimeError, TypeError, NotImplementedError, IndexError):
        return False
    with tracer.quiet():
        for leaf in leaves.values():
            if leaf.grad is not None:
                tracer.external.stays(leaf.grad, "the gradient of the model's output")
    return True
