"""What a node of backward makes of finite numbers: where its function has no finite slope."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.graph import Node

from gradscope.explain.non_finite.reasons import Told, spelled

_EPS = "add a small eps inside the root (`sqrt(x + eps)`): a clamp or `where` after it is too late"
_EDGE = "keep the argument off the edge: `clamp(-1 + eps, 1 - eps)`"
_APART = "perturb the matrix a little, or use a loss that needs the values only"


@dataclass(frozen=True, slots=True)
class _Slope:
    """A function, what its node has saved, and the values where its slope is not finite."""

    function: str
    saved: str
    at: tuple[float, ...]
    words: str
    advice: str


_INFINITE = "its slope is infinite"
_SLOPES = {
    "Sqrt": _Slope("sqrt", "result", (0.0,), _INFINITE, _EPS),
    "Acos": _Slope("acos", "self", (1.0, -1.0), _INFINITE, _EDGE),
    "Asin": _Slope("asin", "self", (1.0, -1.0), _INFINITE, _EDGE),
    "Acosh": _Slope("acosh", "self", (1.0,), _INFINITE, _EDGE),
    "Hypot": _Slope("hypot", "result", (0.0,), "it has no slope there", _EPS),
}
_EQUAL = {
    "LinalgEigh": ("eigh of equal eigenvalues: their vectors have no slope", _APART),
    "LinalgEig": ("eig of equal eigenvalues: their vectors have no slope", _APART),
    "LinalgSvd": ("svd of equal singular values: their vectors have no slope", _APART),
}
_NUMBERED = re.compile(r"Backward\d*$")


def function_of(node: Node) -> str:
    """``Sqrt`` of ``SqrtBackward0``."""
    return _NUMBERED.sub("", type(node).__name__)


def slope(node: Node, told: Told, *, readable: bool) -> tuple[Told, tuple[torch.Tensor, ...]]:
    """What to say of the node instead of its arithmetic, and the forward values behind it.

    Args:
        told: the arithmetic that went wrong inside the node.
        readable: nobody's hooks stand before what the node has saved.
    """
    function = function_of(node)
    if function in _EQUAL:
        words, advice = _EQUAL[function]
        return Told(words, advice, told.count), ()
    if function == "Pow" and readable:
        return _power(node, told)
    known = _SLOPES.get(function)
    if known is None:
        return told, ()
    values = _saved(node, known.saved) if readable else None
    if values is None:
        return Told(f"{known.function}: {known.words}", known.advice, told.count), ()
    met = values[torch.isin(values, values.new_tensor(known.at))]
    if not met.numel():
        return told, (values,)
    where = "(0, 0)" if function == "Hypot" else spelled(float(met[0]))
    words = f"{known.function} at {where}: {known.words}"
    return Told(words, known.advice, met.numel(), values.numel()), (values,)


def _power(node: Node, told: Told) -> tuple[Told, tuple[torch.Tensor, ...]]:
    base, exponent = _saved(node, "self"), _saved(node, "exponent")
    if base is None or not isinstance(exponent, int | float) or not 0 < exponent < 1:
        return told, () if base is None else (base,)
    count = int((base == 0).sum())
    if not count:
        return told, (base,)
    words = f"0 ** {spelled(exponent)}: {_INFINITE}"
    return Told(words, "add a small eps to the base", count, base.numel()), (base,)


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
