"""Finds the level of a tensor (finite, with Inf, with NaN), and explains a node of backward.

``arithmetic`` explains elementwise operations, and those on rows, sums and products of matrices.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.graph import Node

from gradscope.capture.measurements import is_floating
from gradscope.capture.shards import local
from gradscope.explain.shared.operations import by_node

FINITE, INF, NAN = 0, 1, 2
KINDS = ("finite", "inf", "nan")


def level(tensor: torch.Tensor) -> int:
    """Return the worst level of the local elements; an unreadable tensor counts as finite."""
    tensor = local(tensor)
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return FINITE
    try:
        if type(tensor) is torch.Tensor and tensor.layout == torch.strided and _plain(tensor):
            return _level(tensor)
        return max((_level(part) for part in _dense(tensor)), default=FINITE)
    except (RuntimeError, NotImplementedError, TypeError):
        return FINITE  # a wrapper, a kind of memory or a dtype without the reductions


def level_of_number(value: Any) -> int:
    """Return the level of a Python number; any other object is finite."""
    if isinstance(value, complex):
        return max(level_of_number(value.real), level_of_number(value.imag))
    if not isinstance(value, float) or math.isfinite(value):
        return FINITE
    return NAN if math.isnan(value) else INF


def broken(tensor: torch.Tensor, kind: int) -> torch.Tensor:
    """Return a bool mask of the local elements that are NaN, or NaN or Inf if ``kind`` is INF."""
    tensor = local(tensor)
    return torch.isnan(tensor) if kind == NAN else ~torch.isfinite(tensor)


def only_negative(tensor: torch.Tensor) -> bool:
    """Return True if every NaN or Inf in the tensor is -inf, as in a mask."""
    return all(
        not part.is_complex() and not bool(((part == math.inf) | part.isnan()).any())
        for part in _dense(tensor)
    )


def _plain(tensor: torch.Tensor) -> bool:
    return not (tensor.is_nested or tensor.is_meta or tensor.is_quantized)


def _level(tensor: torch.Tensor) -> int:
    if tensor.numel() == 0:
        return FINITE
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    if tensor.dtype.itemsize == 1:
        tensor = tensor.half()
    # One fast reduction: a finite sum has finite terms. Float16 is added up in float32.
    wide = torch.float32 if tensor.dtype.itemsize < 4 else None
    if math.isfinite(tensor.sum(dtype=wide).item()):
        return FINITE
    if bool(torch.isnan(tensor).any()):
        return NAN
    return INF if bool(torch.isinf(tensor).any()) else FINITE


def _dense(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the stored values as strided tensors; nothing if none can be read."""
    tensor = local(tensor)
    if tensor.is_meta or tensor.is_quantized or isinstance(tensor, FakeTensor):
        return []
    if tensor.is_nested:
        return list(tensor.detach().unbind())
    if tensor.layout == torch.sparse_coo:
        return [tensor.detach()._values()]
    if tensor.layout == torch._mkldnn:  # type: ignore[attr-defined]
        return [tensor.detach().to_dense()]
    if tensor.layout != torch.strided:
        return [tensor.detach().values()]
    return [tensor.detach()]


@dataclass(frozen=True, slots=True)
class Reason:
    """A reason, the smallest fix, and the number of affected elements of how many."""

    text: str
    advice: str | None = None
    count: int | None = None
    total: int = 0

    @property
    def counted(self) -> str:
        """Return the reason, with the number of affected elements if the tensor has several."""
        if self.count is None or self.total <= 1:
            return self.text
        return f"{self.text} ({self.count} of {self.total} values)"


@dataclass(frozen=True, slots=True)
class NonFiniteResult:
    """One operation with a NaN or Inf in its result.

    Attributes:
        name: its name without underscores: ``log``, ``softmax``, ``addmm``.
        arguments: the arguments by the names of the schema; tensors as they were before.
        out: the result with a NaN or Inf.
        kind: the level of ``out``.
        pointwise: True if it is elementwise.
    """

    name: str
    arguments: dict[str, Any]
    out: torch.Tensor
    kind: int
    pointwise: bool

    def tensors(self) -> list[torch.Tensor]:
        """Return the floating-point tensors among the arguments."""
        return [
            t for t in self.arguments.values() if isinstance(t, torch.Tensor) and is_floating(t)
        ]

    def number(self, name: str, default: float) -> float:
        """Return an argument that is a number."""
        value = self.arguments.get(name)
        return float(value) if isinstance(value, int | float) else default


Explainer = Callable[[NonFiniteResult], Reason | None]


def spelled(value: float) -> str:
    """Return a value in short form: ``70000``, ``-1e-09``, ``104.2``."""
    if math.isfinite(value) and value == int(value) and abs(value) < 1e7:
        return str(int(value))
    return f"{value:.4g}"


def largest(dtype: torch.dtype) -> str:
    """Return the largest number of a dtype, with its name: ``float16's largest 65504``."""
    top = torch.finfo(dtype).max
    text = spelled(top) if top < 1e6 else f"{top:.2g}"
    return f"{str(dtype).removeprefix('torch.')}'s largest {text}"


def magnitude(tensor: torch.Tensor) -> float:
    """Return the largest finite magnitude; 0 without one."""
    values = (tensor.detach().abs() if tensor.is_complex() else tensor.detach()).double()
    finite = values[torch.isfinite(values)]
    return float(finite.abs().max()) if finite.numel() else 0.0


def wider(dtype: torch.dtype) -> str:
    """Return the advice for values beyond a dtype's range."""
    if dtype in (torch.float16, torch.float8_e4m3fn, torch.float8_e5m2):
        return "compute this in float32 or bfloat16, or make the values smaller before it"
    return "make the values smaller before it: normalise, lower the learning rate, clip gradients"


_EPS = "add a small eps inside the root (`sqrt(x + eps)`): a clamp or `where` after it is too late"
_EDGE = "keep the argument away from the edge: `clamp(-1 + eps, 1 - eps)`"
_APART = "perturb the matrix a little, or use a loss of the values only"


@dataclass(frozen=True, slots=True)
class _Slope:
    """Name of the saved tensor of a node, and the values at which the derivative is NaN or Inf."""

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
    """Return the reason of a node's NaN or Inf by its derivative, and its forward values.

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
    """Return a value saved by the node; None if it was freed, or is neither finite nor a tensor."""
    try:
        value = getattr(node, f"_saved_{name}", None)
    except RuntimeError:
        return None  # freed while the node runs
    if isinstance(value, torch.Tensor):
        # Reading a tensor that a transform of `torch.func` wraps, from a level below, ends the
        # process.
        return None if torch._C._functorch.is_functorch_wrapped_tensor(value) else value.detach()
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
