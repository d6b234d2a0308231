"""Traces one forward and one backward: finds zero results, and the points where gradients end."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import GradientEdge, Node

from gradscope.capture.calls import CHECKPOINT, follow_checkpoint
from gradscope.capture.graph import LEAF
from gradscope.capture.hooks import Handle, hook_node
from gradscope.capture.nodes import ordered, stack_of, topological
from gradscope.explain.shared import tracing_modes
from gradscope.explain.shared.frames import locate
from gradscope.explain.shared.operations import function_name
from gradscope.explain.shared.tracing_modes import TracedCall

Gradients = tuple[torch.Tensor | None, ...]
#: Number of elements to read before a full tensor.
_FEW = 4096


@dataclass(slots=True)
class NodeGradients:
    """Gradients at one node: ``given`` holds True for non-zero, False for zeros, None for none.

    ``short`` marks a node that would only pass zeros on.
    """

    arrived: bool = False
    given: tuple[bool | None, ...] = ()
    kept: Gradients = ()
    short: bool = False


def any_nonzero(tensor: torch.Tensor) -> bool:
    """Return True if any element is not zero; a NaN counts as not zero."""
    if tensor.layout == torch.sparse_coo:
        tensor = tensor._values()
    # Few tensors begin with that many zeros, so the beginning usually decides.
    large = tensor.numel() > _FEW and tensor.layout == torch.strided and tensor.is_contiguous()
    return (large and bool(tensor.detach().view(-1)[:_FEW].any())) or bool(tensor.any())


def _reading_hook(passed: NodeGradients) -> Callable[..., Gradients | None]:
    # The hook refers to the notes, not to the node, because a node that its own hook refers to is
    # never freed.
    def read(sent: Gradients, got: Gradients) -> Gradients | None:
        passed.arrived = any(g is not None and any_nonzero(g) for g in got)
        passed.given = tuple(None if g is None else any_nonzero(g) for g in sent)
        zero = not all(gave is not False for gave in passed.given)
        if passed.arrived and zero:
            passed.kept = tuple(None if g is None else g.detach() for g in got)
        if not (zero and passed.short):
            return None
        return tuple(g if gave else None for g, gave in zip(sent, passed.given, strict=True))

    return read


@dataclass(frozen=True, slots=True)
class ZeroPoint:
    """A point at which a gradient ends.

    Attributes:
        node: the operation that gets a gradient and passes zeros on; for ``sum``, the node at
            which nonzero contributions add up to zero.
        position: the input that gets the zeros.
        kind: ``op``, ``sum``, or ``start`` if backward starts with a zero gradient.
        consumers: for ``sum``, the operations whose contributions were added.
    """

    node: Node
    position: int
    kind: str = "op"
    consumers: tuple[Node, ...] = ()


@dataclass(slots=True)
class BackwardTrace:
    """The graph upstream of a loss, with its gradients after ``backward``."""

    root: Node
    nodes: list[Node] = field(default_factory=list)
    _number: dict[Node, int] = field(default_factory=dict)
    _passed: list[NodeGradients] = field(default_factory=list)
    _consumers: list[list[tuple[int, int]]] = field(default_factory=list)
    _handles: list[Handle] = field(default_factory=list)
    #: For nodes that a checkpoint made in backward: the checkpoint's own node.
    around: dict[Node, Node] = field(default_factory=dict)
    #: The gradients of leaves, if they are not in ``.grad``.
    received: Mapping[torch.Tensor, torch.Tensor | None] | None = None
    _restore: list[Callable[[], None]] = field(default_factory=list)

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
                self._handles.append(hook_node(node, _reading_hook(self._passed[number])))
            self._restore.append(follow_checkpoint(node, functools.partial(self._join, number)))
        return fresh

    def backward(self, run: Callable[[], None], *, short: bool) -> None:
        """Run backward; ``short`` stops each gradient where it becomes zero.

        Upstream of a zero-initialised head, this skips the full network, because the engine passes
        None instead of zeros. A hook, or a custom function, may not accept None; then the full
        backward runs.
        """
        # A checkpoint's recomputation is part of the graph only once it is complete.
        short = short and not any(type(node).__name__ == CHECKPOINT for node in self.nodes)
        self._begin(short=short)
        try:
            run()
        except Exception:
            if not short:
                raise
            self._begin(short=False)
            for node in self.nodes:
                if isinstance(node, LEAF):
                    node.variable.grad = None
            run()

    def _begin(self, *, short: bool) -> None:
        for passed in self._passed:
            passed.arrived, passed.given, passed.kept, passed.short = False, (), (), short

    def release(self) -> list[Node]:
        """Remove every hook and forget the gradients; the caller releases the nodes."""
        for handle in self._handles:
            handle.remove()
        for restore in self._restore:
            restore()
        for passed in self._passed:
            passed.kept = ()
        nodes, self.nodes = self.nodes, []
        self._number.clear()
        self.around.clear()
        self._handles.clear()
        self._restore.clear()
        return nodes

    def consumers(self, node: Node) -> list[Node]:
        """Return the operations that take a node's output."""
        return [self.nodes[number] for number, _ in self._consumers[self._number[node]]]

    def gradients(self, node: Node) -> Gradients:
        """Return the gradients that arrived at a node that passed zeros on."""
        return self._passed[self._number[node]].kept

    def points(self) -> dict[torch.Tensor, list[ZeroPoint]]:
        """Return for every leaf with a zero gradient the points at which gradients to it end."""
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
        """Return every node after the nodes that give it its gradient, and a checkpoint's graph
        after its node."""
        if not self.around:
            return self.nodes
        leads: list[list[int]] = [[] for _ in self.nodes]
        for number, before in enumerate(self._consumers):
            for consumer, _ in before:
                leads[consumer].append(number)
        order = topological(range(len(self.nodes)), leads.__getitem__, int)
        return [self.nodes[number] for number in order]

    def _has_gradient(self, node: Node, number: int) -> bool:
        if isinstance(node, LEAF):
            leaf, received = node.variable, self.received
            gradient = leaf.grad if received is None else received.get(leaf)
            return gradient is not None and any_nonzero(gradient)
        return self._passed[number].arrived

    def _zero_points(self, node: Node, number: int) -> list[ZeroPoint]:
        """Yield the points right before a node that gets only zeros."""
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

    def _join(
        self, number: int, roots: list[GradientEdge], outer: dict[int, tuple[Node, int]]
    ) -> None:
        """Add the graph that a checkpoint recomputed."""
        fresh = self._add([edge.node for edge in roots])
        for edge in roots:
            # Its gradient is the one that arrived at the checkpoint's own node.
            self._consumers[self._number[edge.node]].append((number, -1))
        self.around.update(dict.fromkeys(fresh, self.nodes[number]))
        # Edges to the checkpoint's input lead to its consumers inside.
        for node in fresh:
            if isinstance(node, LEAF) and id(node.variable) in outer:
                consumers = self._consumers[self._number[outer[id(node.variable)][0]]]
                consumers[:] = [pair for pair in consumers if pair[0] != number]
                consumers += self._consumers[self._number[node]]


_OWN = (__file__, str(tracing_modes.__file__))
_HOOKS = (torch.Tensor.register_hook, torch.Tensor.register_post_accumulate_grad_hook)


@dataclass(frozen=True, slots=True)
class ObservedValues:
    """The range of an operation's first input; ``zero`` is True if it returned only zeros."""

    zero: bool
    low: float | None = None
    high: float | None = None
    dropped: bool = False  # by a dropout that leaves nothing


class ForwardTracer:
    """Notes ``ObservedValues`` of every operation with a gradient that Python calls."""

    def __init__(self) -> None:
        self.values: dict[Node, ObservedValues] = {}
        self.hooks = False  # whether a tensor got a hook of the user's
        self.recomputed = False  # whether something is not kept for backward, but made again then

    def run(self, call: TracedCall) -> Any:
        """Run the operation and note its result."""
        limits = _range(call.args)  # before: what works in place overwrites it
        result = call.run()
        self.hooks = self.hooks or call.function in _HOOKS
        self.recomputed = self.recomputed or _packs()
        dropped = _drops_all(call)
        several = result if isinstance(result, tuple | list) else (result,)
        for tensor in several:
            # A wrapped tensor (vmap), or one overwritten in place, has no numbers to show.
            with suppress(RuntimeError, NotImplementedError, TypeError):
                if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
                    self._note(tensor, limits, dropped)
        return result

    def _note(
        self, tensor: torch.Tensor, limits: tuple[float, float] | None, dropped: bool
    ) -> None:
        node = tensor.grad_fn
        if node is None or node in self.values:
            return
        low, high = limits or (None, None)
        self.values[node] = ObservedValues(not any_nonzero(tensor.detach()), low, high, dropped)


def _packs() -> bool:
    """Return True if tensors saved for backward now pass through pack hooks
    (``saved_tensors_hooks``)."""
    return torch._C._autograd._top_saved_tensors_default_hooks(False) is not None


def _drops_all(call: TracedCall) -> bool:
    p = call.args[1] if len(call.args) > 1 else call.kwargs.get("p")
    return "dropout" in function_name(call.function) and isinstance(p, int | float) and p == 1


def _range(args: tuple[Any, ...]) -> tuple[float, float] | None:
    """Return the smallest and the largest number of an operation's first argument."""
    given = args[0] if args else None
    with suppress(RuntimeError, NotImplementedError, TypeError):
        if isinstance(given, torch.Tensor) and given.requires_grad and given.numel():
            low, high = given.detach().aminmax()
            return float(low), float(high)
    return None


def with_hooks(model: nn.Module) -> bool:
    """Return True if a module or a parameter has a hook that reads gradients in backward."""
    modules = any(m._backward_hooks or m._backward_pre_hooks for m in model.modules())
    return modules or any(p._backward_hooks for p in model.parameters())


def location(node: Node) -> str | None:
    """Return the user's line that made a node, as ``net.py:31``; None in a checkpoint's second
    run."""
    # The tracer's own frames are between the operation and the user's line.
    return locate([frame for frame in stack_of(node) if not any(file in frame for file in _OWN)])
