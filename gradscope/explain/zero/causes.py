"""Finds the cause that stops a gradient at an operation, with its figures."""

from __future__ import annotations

import torch
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node

from gradscope.capture.graph import LEAF
from gradscope.explain.shared.operations import Operation, Trait, by_node, node_name
from gradscope.explain.zero.factors import FactorOrigin, FactorOrigins, factor, saved
from gradscope.explain.zero.flat_activations import (
    NodeReplay,
    ZeroCause,
    curved,
    flat_figures,
    normalised,
    underflow,
)
from gradscope.explain.zero.traces import Gradients, ZeroPoint

_ATTENTION = "ScaledDotProduct"
#: PyTorch's wrapper of a module with a backward hook.
MODULE_HOOK = "BackwardHookFunction"


def cause_of(point: ZeroPoint, got: Gradients, origins: FactorOrigins) -> ZeroCause:
    """Return the cause that ends a gradient at one point; ``got`` arrived there."""
    node, position = point.node, point.position
    if point.kind == "start":
        return ZeroCause("masked", node, "start")
    if point.kind == "sum":
        return _cancelled(point)
    operation, name = by_node(node), node_name(node)
    if name == MODULE_HOOK:
        return ZeroCause("masked", node, "module-hook")
    if isinstance(node, BackwardCFunction):
        return ZeroCause("non-differentiable", node, "function")
    replay = NodeReplay(node, position, got)
    if replay.empty:
        return _emptied(node, position)
    if operation.has(Trait.CURVED, Trait.SOFT):
        return curved(replay, operation)
    if operation.has(Trait.SOFTMAX):
        return normalised(replay, operation)
    if replay.passes(replay.scaled()):
        return underflow(replay)
    if name.startswith(_ATTENTION) and position < 2:
        return _attention(node)
    if replay.passes(replay.weighed()):
        return ZeroCause(None, node, "cancelled-inside")
    return _structural(replay, operation, origins)


def _cancelled(point: ZeroPoint) -> ZeroCause:
    variable = getattr(point.node, "variable", None)
    hooked = variable is not None and bool(variable._backward_hooks)
    if hooked or len(point.consumers) == 1:
        return ZeroCause("masked", None if variable is not None else point.node, "hook")
    latest = max(point.consumers, key=lambda node: node._sequence_nr())
    return ZeroCause(None, latest, "cancelled")


def _emptied(node: Node, position: int) -> ZeroCause:
    """Return the operation that selected nothing, or got nothing, upstream of one that got an empty
    tensor."""
    upstream = node.next_functions[position][0]
    node = node if by_node(node).has(Trait.CHOOSES) or upstream is None else upstream
    while not by_node(node).has(Trait.CHOOSES):
        empty = [one for one, _ in node.next_functions if one is not None and _is_empty(one)]
        if not empty:
            break
        if isinstance(empty[0], LEAF):
            return ZeroCause("masked", node, "empty")
        node = empty[0]
    return ZeroCause(
        "masked", node, "nothing-chosen" if by_node(node).has(Trait.CHOOSES) else "empty"
    )


def _is_empty(node: Node) -> bool:
    """Return True if the node's output has no elements."""
    if isinstance(node, LEAF):
        return not node.variable.numel()
    made = getattr(node, "_input_metadata", ())
    return any(0 in tuple(one.shape) for one in made)


def _structural(replay: NodeReplay, operation: Operation, origins: FactorOrigins) -> ZeroCause:
    """Return the cause of an operation that passes no gradient."""
    node, position, name = replay.node, replay.position, operation.name
    if operation.has(Trait.FLAT):
        bounds = (saved(node, "min"), saved(node, "max")) if name == "clamp" else (None, None)
        lower = bounds[0] is not None and not bool(bounds[0].any())
        figures = flat_figures(replay, replay.slopes())
        if name == "clamp" and not (lower and _below(node)):
            return ZeroCause("saturated", node, "clipped", figures)
        return ZeroCause("dead-activation", node, "flat", figures)
    if operation.has(Trait.STEP):
        return ZeroCause("non-differentiable", node, "step")
    if name == "exp":
        return ZeroCause("underflow", node, "exp", (("dtype", replay.dtype),))
    if name == "prod":
        given = saved(node, "self")
        if given is not None and bool(given.all()):
            return ZeroCause(
                "underflow", node, "prod", (("n", given.numel()), ("dtype", replay.dtype))
            )
    if name == "pow" and (base := saved(node, "self")) is not None and bool(base.all()):
        return ZeroCause("underflow", node, "power", (("dtype", replay.dtype),))
    if name == "maximum" and _with_zero(node):
        return ZeroCause("dead-activation", node, "flat", flat_figures(replay, None))
    if name.startswith("nll_loss"):
        return ZeroCause("masked", node, "labels")
    if operation.has(Trait.DISTANCE):
        return ZeroCause(None, node, "minimum")
    if operation.has(Trait.CERTAIN):
        return ZeroCause("saturated", node, "certain", (("rows", None),))
    pair = factor(node, position)
    if pair is not None and (pair[0] is None or bool((pair[0] == 0).any())):
        return _multiplied(replay, origins.of(node, *pair), pair[0])
    if operation.has(Trait.NORMALISES):
        given = saved(node, "input")
        if given is not None and not bool(given.any()):
            origin = origins.of(node, given, node.next_functions[0][0])
            return _multiplied(replay, origin, given)
        return ZeroCause(None, node, "constant")
    state = saved(node, "hx_") if "rnn" in name else None
    if state is not None and not bool(state.any()):
        return ZeroCause("masked", node, "state")
    if operation.has(Trait.CHOOSES, Trait.JOINS):
        return ZeroCause("masked", node, _how_left_out(node))
    if name in ("add", "sub", "rsub"):
        return ZeroCause("masked", node, "times-zero")
    return ZeroCause(None, node, "unknown")


def _with_zero(node: Node) -> bool:
    """Return True if this is the maximum with a constant zero: a ReLU by another name."""
    sides = zip((saved(node, "self"), saved(node, "other")), node.next_functions, strict=True)
    return any(
        edge[0] is None and side is not None and not bool(side.any()) for side, edge in sides
    )


def _attention(node: Node) -> ZeroCause:
    """Return the cause at a fused attention, whose softmax cannot be replayed alone."""
    keys = saved(node, "key")
    single = keys is not None and keys.shape[-2] == 1
    return ZeroCause("saturated", node, "single" if single else "attention")


def _how_left_out(node: Node) -> str:
    """Return the way in which a selecting operation leaves a gradient out."""
    operation = by_node(node)
    if operation.name in ("embedding", "embedding_bag"):
        read, padding = saved(node, "indices"), getattr(node, "_saved_padding_idx", None)
        all_padding = read is None or padding is None or bool((read == padding).all())
        return "padding" if all_padding else "only-padding"
    return "parts" if operation.has(Trait.JOINS) else "routing"


def _below(node: Node) -> bool:
    """Return True if a clamp's input is at or below its lower bound somewhere, as with a ReLU."""
    given, bound = saved(node, "self"), saved(node, "min")
    return given is not None and bound is not None and bool((given <= bound).any())


def _multiplied(replay: NodeReplay, origin: FactorOrigin, factor: torch.Tensor | None) -> ZeroCause:
    """Return the cause if the gradient is multiplied by zero wherever it is nonzero."""
    everywhere = factor is None or not bool(factor.any())
    figures = (
        ("name", origin.name),
        ("everywhere", everywhere),
        ("number", factor is not None and not factor.dim()),
    )
    if origin.kind == "unknown":
        if by_node(origin.at).has(Trait.NORMALISES):
            return ZeroCause(None, origin.at, "constant")
        return ZeroCause("dead-activation", origin.at, "zero-factor", figures)
    if origin.kind == "disjoint":
        return ZeroCause("masked", origin.at, "disjoint")
    if origin.kind == "zero-weight":
        return ZeroCause("zero-weight", origin.at, "zero-weight", figures)
    if origin.kind == "masked" and origin.name == "input":
        return ZeroCause("masked", origin.at, "input", figures)
    if origin.kind == "masked" and origin.data:
        return ZeroCause("masked", origin.at, "mask", figures)
    if origin.kind == "masked":
        return ZeroCause("masked", origin.at, _how_left_out(origin.at), figures)
    if origin.kind == "underflow":
        return ZeroCause("underflow", origin.at, "factor-small", (("dtype", replay.dtype),))
    return ZeroCause(origin.kind, origin.at, "zeros-out", figures)
