"""Finds the factor of a gradient in an operation, and the reason why it is zero; runs a node again
with other gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.graph import Node

from gradscope.capture.graph import LEAF, storage_key
from gradscope.explain.shared.operations import Operation, Trait, by_node, node_name
from gradscope.explain.zero.traces import Gradients, ObservedValues

_NEVER_AGAIN = "CheckpointFunction"  # its backward runs forward again and writes gradients
#: How far a gradient is scaled up: products with the smallest number of the dtype are then seen.
_SCALED = {torch.float16: 2.0**8, torch.bfloat16: 2.0**80, torch.float32: 2.0**80}


def saved(node: Node, name: str) -> torch.Tensor | None:
    """Return a tensor saved by the node; None if there is none, or if it was overwritten."""
    try:
        value = getattr(node, f"_saved_{name}", None)
    except RuntimeError:
        return None
    if isinstance(value, int | float) and not isinstance(value, bool):
        return torch.tensor(float(value), device="cpu")
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
            factors = torch.rand(g.shape, generator=weights, device="cpu") + 0.5
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
