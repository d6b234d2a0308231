"""Operations that ran before anybody looked, watched as they run again on what their nodes saved."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import Node

from gradscope.capture.graph import LEAF, Edge
from gradscope.explain.non_finite.arithmetic import reason_of
from gradscope.explain.non_finite.elements import unseen_element
from gradscope.explain.non_finite.levels import INF, broken, level
from gradscope.explain.non_finite.messages import records
from gradscope.explain.non_finite.origins import NonFiniteOrigin
from gradscope.explain.non_finite.reasons import NonFiniteResult, Reason
from gradscope.explain.non_finite.watch import NonFiniteWatch
from gradscope.explain.shared.call_site import CallSite
from gradscope.explain.shared.module_calls import ModuleCalls
from gradscope.explain.shared.node_forward import (
    NodeForward,
    bound,
    fits,
    forwards,
    result_of,
    saved_by,
    undone,
)
from gradscope.explain.shared.operations import by_node
from gradscope.records.answers import Birth

#: Operations that put a number, which their nodes do not keep, among those of a tensor.
_PUTS = ("masked_fill", "where", "index_fill", "index_put", "constant_pad_nd", "copy_slices")
_FINITE_INSTEAD = "a large finite number in its place stays finite"


@dataclass(frozen=True, slots=True)
class Written:
    """Where a node's operation stands in the script, and the function of PyTorch's that ran it."""

    site: CallSite = CallSite()
    function: str | None = None


def explain_graph(
    roots: Sequence[torch.Tensor],
    nodes: Sequence[Node],
    known: Mapping[Edge, torch.Tensor],
    written: Callable[[Node], Written],
) -> tuple[Birth, ...]:
    """The operations of a graph that made a NaN or an infinity of finite numbers, oldest first.

    Args:
        roots: where the graph ends, such as the loss.
        nodes: those to look at, oldest first; their saved tensors are still there.
        known: values by the edges at which the graph begins.
        written: of each node.
    """
    replay = _Replay(written, known)
    replay.foresee(roots, nodes)
    for node in nodes:
        replay.run(node)
    for root in roots:
        replay.ends(root)
    return records(replay.watch.origins.reported(), ())


@dataclass(frozen=True, slots=True)
class KeptNode:
    """A node whose slope may not be finite: what it saved, kept for when its graph is gone.

    Attributes:
        name: of the operation.
        edges: how many lead to its inputs.
    """

    name: str
    saved: Mapping[str, Any]
    edges: int
    written: Written


def explain_slopes(nodes: Iterable[KeptNode]) -> tuple[Birth, ...]:
    """Which operations have a slope that is not finite where they were taken, the latest first.

    Each is run again by itself, and a gradient of ones is sent into it.
    """
    places = Places()
    watch = places.watch()
    for kept in nodes:
        places.at = kept.written.site
        for forward in bound(kept.name, kept.saved, kept.edges):
            if _back_and_forth(watch, kept, forward):
                break
    return records(watch.origins.reported(), ())


def _back_and_forth(watch: NonFiniteWatch, kept: KeptNode, forward: NodeForward) -> bool:
    """Whether the operation ran."""
    leaves: dict[str, torch.Tensor] = {}
    for name in forward.edges:
        value = forward.arguments.get(name, undone(kept.name, kept.saved))
        if not isinstance(value, torch.Tensor):
            return False
        leaves[name] = value.detach().clone().requires_grad_()
    try:
        watch.context.stage = "forward"
        with torch.enable_grad(), watch.replaying(kept.written.function or kept.name):
            results = forward.run(leaves)
        roots = [result for result in results if result.requires_grad]
        watch.context.stage = "backward"
        with watch.replaying(None):
            torch.autograd.backward(roots, [torch.ones_like(root) for root in roots])
    except (RuntimeError, TypeError, NotImplementedError, IndexError):
        return False
    with watch.quiet():
        for leaf in leaves.values():
            if leaf.grad is not None:
                watch.external.stays(leaf.grad, "the gradient of the loss")
    return True


class _Replay:
    """Runs the nodes of a graph forward, in turn, under the watch."""

    def __init__(
        self, written: Callable[[Node], Written], known: Mapping[Edge, torch.Tensor]
    ) -> None:
        self.written = written
        self.places = Places()
        self.watch = self.places.watch()
        self.values: dict[Edge, torch.Tensor] = dict(known)
        self.foreseen: dict[Edge, torch.Tensor] = {}
        #: The origins of what went into an operation of which nobody knows what came out.
        self.carried: dict[Edge, int] = {}

    def foresee(self, roots: Sequence[torch.Tensor], nodes: Iterable[Node]) -> None:
        """What a node saved of its inputs is what others gave it, where these cannot run."""
        self.foreseen = {(r.grad_fn, r.output_nr): r.detach() for r in roots if r.grad_fn}
        for node in nodes:
            forward = next(forwards(node), None)
            for name, positions in {} if forward is None else forward.edges.items():
                value = forward.arguments.get(name)
                following, number = node.next_functions[positions[0]]
                if following is not None and isinstance(value, torch.Tensor):
                    self.foreseen.setdefault((following, number), value.detach())

    def run(self, node: Node) -> None:
        """Run the operation of a node; where that cannot be, take what its node or others saved."""
        at = self.written(node)
        self.places.at = at.site
        with torch.no_grad():
            results = self._results(node, at.function or by_node(node).name)
            for number, result in enumerate(results):
                self.values[node, number] = result
            if not results:
                self._unseen(node, at)

    def ends(self, root: torch.Tensor) -> None:
        """What came to a root has come to the loss."""
        value = root if root.grad_fn is None else self.values.get((root.grad_fn, root.output_nr))
        with self.watch.quiet():
            if value is not None:
                self.watch.external.stays(value, "loss")

    def _results(self, node: Node, function: str) -> tuple[torch.Tensor, ...]:
        for forward in forwards(node):
            given = self._given(node, forward)
            if given is None:
                continue
            try:
                with self.watch.replaying(function):
                    results = forward.run(given)
            except (RuntimeError, TypeError, NotImplementedError, IndexError):
                continue  # another operation of this name
            if fits(node, results):
                return results
        return ()

    def _given(self, node: Node, forward: NodeForward) -> dict[str, Any] | None:
        """The values that came along the edges; None where one is not known."""
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
        """What came along an edge into a node's operation."""
        following, number = node.next_functions[position]
        if following is None:
            return None
        if isinstance(following, LEAF):
            leaf: torch.Tensor = following.variable
            return leaf.detach()
        return self.values.get((following, number))

    def _unseen(self, node: Node, at: Written) -> None:
        """What came out of an operation that did not run again: was it finite before it?"""
        result = result_of(saved_by(node))
        origins = self._origins(node)
        for number in range(len(node._input_metadata)):
            edge = node, number
            value = self.foreseen.get(edge, result if number == 0 else None)
            if value is None:
                self.carried[edge] = origins
                continue
            self.values[edge] = value
            with self.watch.quiet():
                found = level(value)
                if found:
                    mask = origins or self._made(node, at, value, found)
                    self.watch.origins.put(value, mask, whole=True)

    def _origins(self, node: Node) -> int:
        """Of what is not finite, or may not be, among the inputs of a node."""
        mask = 0
        for position, (following, number) in enumerate(node.next_functions):
            value = self.value(node, position)
            if value is not None and level(value):
                mask |= self.watch.origins.of(value)
            elif value is None and following is not None:
                mask |= self.carried.get((following, number), 0)
        return mask

    def _made(self, node: Node, at: Written, value: torch.Tensor, found: int) -> int:
        """An origin that is known by its result alone."""
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
        return self.watch.origins.add(
            NonFiniteOrigin(found, "loss", op, at.site, reason, deliberate=put)
        )


class Places(ModuleCalls):
    """In the place of module calls: the operation that runs stands where it is said to stand."""

    def __init__(self) -> None:
        module = nn.Module()
        super().__init__(module, Places.__init__.__code__)
        self.called.add(module)  # what runs outside of it now is the loss's
        self.at = CallSite()
        self._module = module

    def site(self, frame: Any = None) -> CallSite:
        """Where the operation stands."""
        return self.at

    def watch(self) -> NonFiniteWatch:
        """A watch that asks here."""
        return NonFiniteWatch(self._module, self.last, calls=self)
