"""Finds the factor of a gradient in an operation, and the reason why it is zero."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch.autograd.graph import Node

from gradscope.capture.graph import LEAF, storage_key
from gradscope.explain.shared.operations import Operation, Trait, by_node
from gradscope.explain.zero.traces import ObservedValues


def saved(node: Node, name: str) -> torch.Tensor | None:
    """Return a tensor saved by the node; None if there is none, or if it was overwritten."""
    try:
        value = getattr(node, f"_saved_{name}", None)
    except RuntimeError:
        return None
    if isinstance(value, int | float) and not isinstance(value, bool):
        return torch.tensor(float(value))
    return value.detach() if isinstance(value, torch.Tensor) else None


def factor(node: Node, position: int) -> tuple[torch.Tensor | None, Node | None] | None:
    """Return the factor of the gradient to ``position`` and its node; None without a factor."""
    entry = by_node(node).factors.get(position)
    if entry is None:
        return None
    name, edge = entry
    following = node.next_functions[edge][0] if edge < len(node.next_functions) else None
    return saved(node, name), following


@dataclass(frozen=True, slots=True)
class FactorOrigin:
    """The origin of a zero factor: ``kind`` is a cause or ``unknown``; ``at`` is the node to
    report. ``name`` is the parameter, the buffer or "input" (the model's input), if the factor is
    one. ``data`` marks a tensor that needs no gradient and does not belong to the model."""

    kind: str
    at: Node
    name: str | None = None
    data: bool = False


class FactorOrigins:
    """Follows zeros back to their origin.

    Args:
        names: names of parameters and buffers by ``id``.
        memories: the same by storage, for tensors that were saved detached.
        seen: the observed values of each node's result.
    """

    def __init__(
        self,
        names: Mapping[int, str],
        memories: Mapping[int, str],
        seen: Mapping[Node, ObservedValues],
    ) -> None:
        self._names = names
        self._memories = memories
        self._seen = seen

    def of(self, node: Node, tensor: torch.Tensor | None, maker: Node | None) -> FactorOrigin:
        """Return the origin of the zeros in ``tensor``, which multiplies a gradient at ``node``.

        ``maker`` is the node upstream of it, None if it needs no gradient.
        """
        at, everywhere = node, tensor is not None and not bool(tensor.any())
        for _ in range(10_000):  # no graph without a loop is that deep in factors
            if maker is None:
                return self._constant(at, tensor)
            operation = by_node(maker)
            if isinstance(maker, LEAF):
                named = self._names.get(id(maker.variable))
                if named is not None:
                    return FactorOrigin("zero-weight", at, named)
                return FactorOrigin("masked", at, "input")
            made = self._made(maker, operation)
            if made is not None:
                return made
            step = self._product(maker, operation, everywhere=everywhere)
            if isinstance(step, FactorOrigin):
                return step
            if step is not None:
                tensor, at, maker = step[0], maker, step[1]
                continue
            following = None if operation.factors else self._linear(maker, everywhere=everywhere)
            if following is None:
                return FactorOrigin("unknown", maker)
            tensor, maker = None, following
        return FactorOrigin("unknown", at)

    def _constant(self, at: Node, tensor: torch.Tensor | None) -> FactorOrigin:
        if tensor is None:
            return FactorOrigin("unknown", at)
        named = None
        if tensor.layout == torch.strided and tensor.numel():
            named = self._memories.get(storage_key(tensor))
        if named is not None:
            return FactorOrigin("zero-weight", at, named)
        return FactorOrigin("masked", at, data=True)

    def _made(self, node: Node, operation: Operation) -> FactorOrigin | None:
        """Return the origin if the operation itself makes zeros."""
        if operation.has(Trait.ZERO_AT_ZERO):
            result = saved(node, "self")
            if result is None or not bool(result.any()):
                return None
        if operation.has(Trait.FLAT):
            return FactorOrigin("dead-activation", node)
        if operation.has(Trait.CURVED, Trait.SOFTMAX):
            return FactorOrigin("saturated", node)
        if operation.name in ("embedding", "embedding_bag") and self._zero_table(node):
            table = node.next_functions[0][0]
            return FactorOrigin("zero-weight", node, self._names.get(id(table.variable)))  # type: ignore[union-attr]
        chooses = operation.has(Trait.CHOOSES) and not operation.has(Trait.SLICES)
        if chooses and not self._took_zeros(node):
            return FactorOrigin("masked", node)
        if operation.name == "exp":
            return FactorOrigin("underflow", node)
        return None

    def _took_zeros(self, node: Node) -> bool:
        given = node.next_functions[0][0] if node.next_functions else None
        seen = None if given is None else self._seen.get(given)
        return seen is not None and seen.zero

    def _zero_table(self, node: Node) -> bool:
        table = node.next_functions[0][0]
        return isinstance(table, LEAF) and not bool(table.variable.any())

    def _product(
        self, node: Node, operation: Operation, *, everywhere: bool
    ) -> FactorOrigin | tuple[torch.Tensor | None, Node | None] | None:
        """Return the zero factor of two, or that neither is zero."""
        if operation.name == "div" and everywhere:  # by a finite number: the dividend is zero
            above = node.next_functions[0][0]
            return (None, above) if above is not None and self._may_be_zero(above) else None
        if not operation.factors or operation.name in ("div", "lerp"):
            return None
        wanted = list(operation.factors.values())
        wanted += [("input", 0)] if operation.has(Trait.NORMALISES) else []
        pairs = [(saved(node, kept), node.next_functions[edge][0]) for kept, edge in wanted]
        zero: Callable[[torch.Tensor], bool] = (
            (lambda t: not bool(t.any())) if everywhere else (lambda t: bool((t == 0).any()))
        )
        for tensor, maker in pairs:
            if tensor is not None and zero(tensor):
                return tensor, maker
        if (
            everywhere
            and all(tensor is not None for tensor, _ in pairs)
            and operation.name == "mul"
        ):
            return FactorOrigin("underflow", node)
        known = [tensor for tensor, _ in pairs if tensor is not None]
        if len(known) == len(pairs):
            return None
        missing = [maker for tensor, maker in pairs if tensor is None]
        if everywhere and operation.name == "mul" and self._excluded(node, known, missing):
            return FactorOrigin("disjoint", node)
        return None if len(missing) != 1 or missing[0] is None else (None, missing[0])

    def _excluded(self, node: Node, known: list[torch.Tensor], missing: list[Node | None]) -> bool:
        """Return True if a constant is zero in places, and the other factor is not all zeros."""
        if len(known) != 1 or len(missing) != 1 or missing[0] is None:
            return False
        product, factor = self._seen.get(node), self._seen.get(missing[0])
        if product is None or factor is None or factor.zero or not product.zero:
            return False
        return bool((known[0] == 0).any())

    def _linear(self, node: Node, *, everywhere: bool) -> Node | None:
        """Return the node to follow upstream of an operation that moves, adds or scales."""
        following = [after for after, _ in node.next_functions if after is not None]
        if not everywhere:
            return following[0] if len(following) == 1 else None
        kept = [after for after in following if self._may_be_zero(after)]
        return kept[0] if kept and len(kept) == len(following) else None

    def _may_be_zero(self, node: Node) -> bool:
        if isinstance(node, LEAF):
            return not bool(node.variable.any())
        seen = self._seen.get(node)
        return seen is None or seen.zero
