"""What stops a gradient at an operation that passes zeros on: one cause, with its figures."""

from __future__ import annotations

import torch
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node

from gradscope.capture.graph import LEAF
from gradscope.explain.zero.backward_trace import Stop
from gradscope.explain.zero.curves import Verdict, curved, flat_figures, normalised, underflow
from gradscope.explain.zero.factors import Origin, Origins, factor, op, saved
from gradscope.explain.zero.node_gradients import Gradients
from gradscope.explain.zero.node_replay import Asked
from gradscope.explain.zero.operations import (
    CURVED,
    FLAT,
    JOINING,
    NORMALISED,
    NORMS,
    ROUTING,
    SOFT,
    STEPS,
)

#: Losses whose gradient is the distance to the target.
_DISTANCES = frozenset(
    ["MseLoss", "SmoothL1Loss", "HuberLoss", "Abs", "Pow", "LinalgVectorNorm", "Norm", "Cdist"]
)
_CERTAIN = frozenset(["BinaryCrossEntropyWithLogits", "BinaryCrossEntropy"])
_ATTENTION = "ScaledDotProduct"
#: What PyTorch wraps a module in that has a hook in backward.
MODULE_HOOK = "BackwardHookFunction"


def judge(stop: Stop, got: Gradients, origins: Origins) -> Verdict:
    """The verdict on one end of a gradient; ``got`` is what arrived there."""
    node, position = stop.node, stop.position
    if stop.kind == "start":
        return Verdict("masked", node, "start")
    if stop.kind == "met":
        return _met(stop)
    name = op(node)
    if name == MODULE_HOOK:
        return Verdict("masked", node, "module-hook")
    if isinstance(node, BackwardCFunction):
        return Verdict("non-differentiable", node, "function")
    asked = Asked(node, position, got)
    if asked.empty:
        return _emptied(node, position)
    if name in CURVED or name in SOFT:
        return curved(asked, name)
    if name in NORMALISED:
        return normalised(asked, name)
    if asked.passes(asked.scaled()):
        return underflow(asked)
    if name.startswith(_ATTENTION) and position < 2:
        return _attention(node)
    if asked.passes(asked.weighed()):
        return Verdict(None, node, "cancelled-inside")
    return _structural(asked, name, origins)


def _met(stop: Stop) -> Verdict:
    variable = getattr(stop.node, "variable", None)
    hooked = variable is not None and bool(variable._backward_hooks)
    if hooked or len(stop.consumers) == 1:
        return Verdict("masked", None if variable is not None else stop.node, "hook")
    latest = max(stop.consumers, key=lambda node: node._sequence_nr())
    return Verdict(None, latest, "cancelled")


def _emptied(node: Node, position: int) -> Verdict:
    """The operation that chose nothing, or was given nothing, before one that got an empty one."""
    behind = node.next_functions[position][0]
    node = node if op(node) in ROUTING or behind is None else behind
    while op(node) not in ROUTING:
        empty = [one for one, _ in node.next_functions if one is not None and _is_empty(one)]
        if not empty:
            break
        if isinstance(empty[0], LEAF):
            return Verdict("masked", node, "empty")
        node = empty[0]
    return Verdict("masked", node, "nothing-chosen" if op(node) in ROUTING else "empty")


def _is_empty(node: Node) -> bool:
    """Whether what a node made has no elements."""
    if isinstance(node, LEAF):
        return not node.variable.numel()
    made = getattr(node, "_input_metadata", ())
    return any(0 in tuple(one.shape) for one in made)


def _structural(asked: Asked, name: str, origins: Origins) -> Verdict:
    """No gradient at all would pass here."""
    node, position = asked.node, asked.position
    if name in FLAT:
        bounds = (saved(node, "min"), saved(node, "max")) if name == "Clamp" else (None, None)
        lower = bounds[0] is not None and not bool(bounds[0].any())
        figures = flat_figures(asked, asked.slopes())
        if name == "Clamp" and not (lower and _below(node)):
            return Verdict("saturated", node, "clipped", figures)
        return Verdict("dead-activation", node, "flat", figures)
    if name in STEPS:
        return Verdict("non-differentiable", node, "step")
    if name == "Exp":
        return Verdict("underflow", node, "exp", (("dtype", asked.dtype),))
    if name == "Prod":
        given = saved(node, "self")
        if given is not None and bool(given.all()):
            return Verdict(
                "underflow", node, "prod", (("n", given.numel()), ("dtype", asked.dtype))
            )
    if name == "Pow" and (base := saved(node, "self")) is not None and bool(base.all()):
        return Verdict("underflow", node, "power", (("dtype", asked.dtype),))
    if name == "Maximum" and _with_zero(node):
        return Verdict("dead-activation", node, "flat", flat_figures(asked, None))
    if name.startswith("NllLoss"):
        return Verdict("masked", node, "labels")
    if name in _DISTANCES:
        return Verdict(None, node, "minimum")
    if name in _CERTAIN:
        return Verdict("saturated", node, "certain", (("rows", None),))
    pair = factor(node, position)
    if pair is not None and (pair[0] is None or bool((pair[0] == 0).any())):
        return _multiplied(asked, origins.of(node, *pair), pair[0])
    if name in NORMS:
        given = saved(node, "input")
        if given is not None and not bool(given.any()):
            origin = origins.of(node, given, node.next_functions[0][0])
            return _multiplied(asked, origin, given)
        return Verdict(None, node, "constant")
    state = saved(node, "hx_") if "Rnn" in name else None
    if state is not None and not bool(state.any()):
        return Verdict("masked", node, "state")
    if name in ROUTING or name in JOINING:
        return Verdict("masked", node, _way(node))
    if name in ("Add", "Sub", "Rsub"):
        return Verdict("masked", node, "times-zero")
    return Verdict(None, node, "unknown")


def _with_zero(node: Node) -> bool:
    """Whether this is the maximum with a constant zero: a ReLU by another name."""
    sides = zip((saved(node, "self"), saved(node, "other")), node.next_functions, strict=True)
    return any(
        edge[0] is None and side is not None and not bool(side.any()) for side, edge in sides
    )


def _attention(node: Node) -> Verdict:
    """The scores of a fused attention: its softmax cannot be asked apart from the rest."""
    keys = saved(node, "key")
    single = keys is not None and keys.shape[-2] == 1
    return Verdict("saturated", node, "single" if single else "attention")


def _way(node: Node) -> str:
    """How an operation that chooses leaves a gradient out."""
    name = op(node)
    if name in ("Embedding", "EmbeddingBag"):
        return "padding"
    return "parts" if name in JOINING else "routing"


def _below(node: Node) -> bool:
    """Whether what a clamp got lies at or below its lower bound, as with a ReLU."""
    given, bound = saved(node, "self"), saved(node, "min")
    return given is not None and bound is not None and bool((given <= bound).any())


def _multiplied(asked: Asked, origin: Origin, met: torch.Tensor | None) -> Verdict:
    """The gradient is multiplied by zero wherever it is not zero itself."""
    whole = met is None or not bool(met.any())
    figures = (
        ("name", origin.name),
        ("whole", whole),
        ("number", met is not None and not met.dim()),
    )
    if origin.kind == "unknown":
        if op(origin.at) in NORMS:
            return Verdict(None, origin.at, "constant")
        return Verdict("dead-activation", origin.at, "zero-factor", figures)
    if origin.kind == "zero-weight":
        return Verdict("zero-weight", origin.at, "zero-weight", figures)
    if origin.kind == "masked" and origin.name == "input":
        return Verdict("masked", origin.at, "input", figures)
    if origin.kind == "masked" and origin.data:
        return Verdict("masked", origin.at, "mask", figures)
    if origin.kind == "masked":
        return Verdict("masked", origin.at, _way(origin.at), figures)
    if origin.kind == "underflow":
        return Verdict("underflow", origin.at, "factor-small", (("dtype", asked.dtype),))
    return Verdict(origin.kind, origin.at, "zeros-out", figures)
