"""What stops a gradient at an operation that passes zeros on: one cause, with its figures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node

from gradscope.explain._zero_asking import Asked
from gradscope.explain._zero_factors import Origin, Origins, factor, op, saved
from gradscope.explain._zero_graph import Stop
from gradscope.explain._zero_operations import (
    CURVED,
    FLAT,
    JOINING,
    NORMALISED,
    NORMS,
    ROUTING,
    SOFT,
    STEPS,
)
from gradscope.explain._zero_passing import Gradients

#: A slope below this is an end of the curve.
_GENTLE = 1e-4
#: Losses whose gradient is the distance to the target.
_DISTANCES = frozenset(
    ["MseLoss", "SmoothL1Loss", "HuberLoss", "Abs", "Pow", "LinalgVectorNorm", "Norm", "Cdist"]
)
_CERTAIN = frozenset(["BinaryCrossEntropyWithLogits", "BinaryCrossEntropy"])
_ATTENTION = "ScaledDotProduct"


@dataclass(frozen=True, slots=True)
class Verdict:
    """One cause at one node. ``why`` is a key of the sentences, ``figures`` fill it in."""

    cause: str | None
    node: Node | None
    why: str
    figures: tuple[tuple[str, Any], ...] = ()

    def figure(self, name: str) -> Any:
        """One of the figures; None where it is not known."""
        return dict(self.figures).get(name)


def judge(stop: Stop, got: Gradients, origins: Origins) -> Verdict:
    """The verdict on one end of a gradient; ``got`` is what arrived there."""
    node, position = stop.node, stop.position
    if stop.kind == "start":
        return Verdict("masked", node, "start")
    if stop.kind == "met":
        return _met(stop)
    name = op(node)
    if isinstance(node, BackwardCFunction):
        return Verdict("non-differentiable", node, "function")
    asked = Asked(node, position, got)
    if asked.empty:
        return Verdict("masked", _emptied(node, position), "nothing-chosen")
    if name in CURVED or name in SOFT:
        return _curved(asked, name)
    if name in NORMALISED:
        return _normalised(asked, name)
    if asked.passes(asked.scaled()):
        return _underflow(asked)
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


def _emptied(node: Node, position: int) -> Node:
    """The operation that chose nothing, from the one that got a gradient for an empty tensor."""
    if op(node) in ROUTING:
        return node
    following = node.next_functions[position][0]
    while following is not None and op(following) not in ROUTING and following.next_functions:
        node, following = following, following.next_functions[0][0]
    return node if following is None else following


def _curved(asked: Asked, name: str) -> Verdict:
    slopes = asked.slopes()
    steepest = None
    if slopes is not None:
        known = slopes[~slopes.isnan()].abs()
        steepest = float(known.max()) if known.numel() else 0.0
    if steepest is not None and steepest > _GENTLE:
        if asked.passes(asked.scaled()):
            return _underflow(asked)
        return Verdict(None, asked.node, "unknown")
    cause = "dead-activation" if name in SOFT else "saturated"
    if name == "Hardsigmoid":
        given = saved(asked.node, "self")
        if given is not None and float(given.max()) <= 0:  # its lower end is 0, as a ReLU's
            cause = "dead-activation"
    return Verdict(cause, asked.node, "flat", _flat_figures(asked, slopes))


def _normalised(asked: Asked, name: str) -> Verdict:
    node = asked.node
    result = saved(node, "result")
    certain = False
    if result is not None and result.numel():
        dim = _signed(getattr(node, "_saved_dim", -1), result.dim())
        if result.shape[dim] == 1:
            return Verdict("saturated", node, "single")
        top = result.float().amax(dim)
        certain = bool(((top.exp() if name == "LogSoftmax" else top) > 1 - _GENTLE).all())
    if not certain and asked.passes(asked.scaled()):
        return _underflow(asked)
    if not certain and asked.passes(asked.weighed()):
        return Verdict(None, node, "constant-sum")
    rows = None if result is None else result.numel() // max(1, result.shape[dim])
    return Verdict("saturated", node, "certain", (("rows", rows),))


def _signed(dim: int, of: int) -> int:
    """A dimension as autograd keeps it: unsigned, where it was counted from the end."""
    dim = dim - 2**64 if dim >= 2**63 else dim
    return dim if -of <= dim < of else -1


def _underflow(asked: Asked) -> Verdict:
    figures = (("largest", asked.largest), ("dtype", asked.dtype))
    return Verdict("underflow", asked.node, "small", figures)


def _structural(asked: Asked, name: str, origins: Origins) -> Verdict:
    """No gradient at all would pass here."""
    node, position = asked.node, asked.position
    if name in FLAT:
        bounds = (saved(node, "min"), saved(node, "max")) if name == "Clamp" else (None, None)
        lower = bounds[0] is not None and not bool(bounds[0].any())
        below = lower and _below(node)
        cause = "masked" if name == "Clamp" and not below else "dead-activation"
        return Verdict(cause, node, "flat", _flat_figures(asked, asked.slopes()))
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
        return Verdict("dead-activation", node, "flat", _flat_figures(asked, None))
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


def _flat_figures(asked: Asked, slopes: torch.Tensor | None) -> tuple[tuple[str, Any], ...]:
    """How many places and units are flat, and the range of what went in."""
    figures: list[tuple[str, Any]] = [("dtype", asked.dtype)]
    if slopes is not None:
        reached = ~slopes.isnan()
        figures += [("reached", int(reached.sum())), ("places", slopes.numel())]
        if slopes.dim() > 1:
            axis = 1 if slopes.dim() > 3 else slopes.dim() - 1
            touched = reached.movedim(axis, 0).flatten(1).any(1)
            figures += [("units", int(touched.sum())), ("of", touched.numel())]
    given = saved(asked.node, "self")
    if given is not None and given.numel() and given.is_floating_point():
        low, high = (float(end) for end in given.float().aminmax())
        figures += [("low", low), ("high", high)]
    return tuple(figures)
