"""Why a backward node returned NaN or Inf: its function has a singular derivative there."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.graph import Node

from gradscope.explain.non_finite.reasons import Reason, spelled
from gradscope.explain.shared.operations import by_node

_EPS = "add a small eps inside the root (`sqrt(x + eps)`): a clamp or `where` after it is too late"
_EDGE = "keep the argument away from the edge: `clamp(-1 + eps, 1 - eps)`"
_APART = "perturb the matrix a little, or use a loss of the values only"


@dataclass(frozen=True, slots=True)
class _Slope:
    """What a node has saved, and the values where the slope of its function is NaN or Inf."""

    saved: str
    at: tuple[float, ...]
    text: str
    advice: str


_INFINITE = "its derivative is infinite"
_SLOPES = {
    "sqrt": _Slope("result", (0.0,), _INFINITE, _EPS),
    "acos": _Slope("self", (1.0, -1.0), _INFINITE, _EDGE),
    "asin": _Slope("self", (1.0, -1.0), _INFINITE, _EDGE),
    "acosh": _Slope("self", (1.0,), _INFINITE, _EDGE),
    "hypot": _Slope("result", (0.0,), "its derivative is undefined there", _EPS),
}
_EQUAL = {
    "linalg_eigh": (
        "eigh of equal eigenvalues: the derivative of their vectors is undefined",
        _APART,
    ),
    "linalg_eig": (
        "eig of equal eigenvalues: the derivative of their vectors is undefined",
        _APART,
    ),
    "linalg_svd": (
        "svd of equal singular values: the derivative of their vectors is undefined",
        _APART,
    ),
}


def slope(node: Node, reason: Reason, *, readable: bool) -> tuple[Reason, tuple[torch.Tensor, ...]]:
    """What to say of the node instead of its arithmetic, and its forward values.

    Args:
        reason: the arithmetic that went wrong inside the node.
        readable: no hooks are on the saved tensors of the node.
    """
    function = by_node(node).name
    if function in _EQUAL:
        text, advice = _EQUAL[function]
        return Reason(text, advice, reason.count), ()
    if function == "pow" and readable:
        return _power(node, reason)
    known = _SLOPES.get(function)
    if known is None:
        return reason, ()
    values = _saved(node, known.saved) if readable else None
    if values is None:
        return Reason(f"{function}: {known.text}", known.advice, reason.count), ()
    found = values[torch.isin(values, values.new_tensor(known.at))]
    if not found.numel():
        return reason, (values,)
    where = "(0, 0)" if function == "hypot" else spelled(float(found[0]))
    text = f"{function} at {where}: {known.text}"
    return Reason(text, known.advice, found.numel(), values.numel()), (values,)


def _power(node: Node, reason: Reason) -> tuple[Reason, tuple[torch.Tensor, ...]]:
    base, exponent = _saved(node, "self"), _saved(node, "exponent")
    if base is None or not isinstance(exponent, int | float) or not 0 < exponent < 1:
        return reason, () if base is None else (base,)
    count = int((base == 0).sum())
    if not count:
        return reason, (base,)
    text = f"0 ** {spelled(exponent)}: {_INFINITE}"
    return Reason(text, "add a small eps to the base", count, base.numel()), (base,)


def _saved(node: Node, name: str) -> Any:
    """What the node kept for backward; None where it is gone, or not a number nor plain tensor."""
    try:
        value = getattr(node, f"_saved_{name}", None)
    except RuntimeError:
        return None  # freed while the node runs
    if isinstance(value, torch.Tensor):
        # To read what a transform of `torch.func` has wrapped, from below it, ends the process.
        return None if torch._C._functorch.is_functorch_wrapped_tensor(value) else value.detach()
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
