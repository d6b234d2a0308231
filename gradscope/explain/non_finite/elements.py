"""Explains elementwise operations by the first element that became NaN or Inf."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from gradscope.explain.non_finite.reasons import (
    NAN,
    NonFiniteResult,
    Reason,
    broken,
    largest,
    level_of_number,
    spelled,
    wider,
)

#: For the operands at one element: the words, and the fix.
ElementExplainer = Callable[[NonFiniteResult, list[float]], tuple[str, str]]

_SAFE_DIVISOR = "keep the divisor away from 0: add an eps, or `clamp(min=…)` it"
_SAFE_INFINITY = "keep Inf out of the product: `masked_fill` or `where` instead of a factor"


def element(result: NonFiniteResult) -> Reason | None:
    """Return the reason of an elementwise operation; None if the operands cannot be matched."""
    operands = _operands(result)
    bad = broken(result.out, result.kind)
    shape = result.out.shape
    try:
        spread = [o.expand(shape) if isinstance(o, torch.Tensor) else o for o in operands]
    except RuntimeError:
        return None
    where = _first(bad, spread, result)
    if where is None:
        return None
    at, count = where
    values = [float(o[at].item()) if isinstance(o, torch.Tensor) else float(o) for o in spread]
    if not values:
        return None
    text, advice = _EXPLAINERS.get(result.name, _plain)(result, values)
    return Reason(text, advice, count, result.out.numel())


def unseen_element(result: NonFiniteResult) -> Reason | None:
    """Explain an element without known operands; None if they are arbitrary."""
    if result.name in ("exp", "exp2", "expm1") and result.kind != NAN:
        top = _largest_exponent(result)
        text = f"{result.name} of a number above {top:.1f} in {str(result.out.dtype)[6:]}"
        return Reason(text, _exp(result, [top])[1])
    if result.name in ("sqrt", "rsqrt"):
        value = -1.0 if result.kind == NAN else 0.0
        _, advice = _root(result, [value])
        return Reason(f"{result.name} of {'a negative number' if value else '0'}", advice)
    if result.name == "reciprocal" and result.kind != NAN:
        return Reason("division by zero", _SAFE_DIVISOR)
    return None


def fails_on_finite(result: NonFiniteResult) -> bool:
    """Return True if an element is NaN or Inf although all its operands are finite."""
    if any(level_of_number(value) for value in result.arguments.values()):
        return False
    try:
        spread = [tensor.expand(result.out.shape) for tensor in result.tensors()]
    except RuntimeError:
        return False
    bad = broken(result.out, result.kind)
    for operand in spread:
        bad = bad & torch.isfinite(operand)
    return bool(bad.any())


def _first(
    bad: torch.Tensor, spread: list[Any], result: NonFiniteResult
) -> tuple[tuple[int, ...], int] | None:
    """Return the first element that became NaN or Inf from better operands, and the number of such
    elements."""
    for operand in spread:
        if isinstance(operand, torch.Tensor) and operand.is_floating_point():
            bad = bad & (~torch.isnan(operand) if result.kind == NAN else torch.isfinite(operand))
    places = bad.nonzero()
    if not len(places):
        return None
    return tuple(int(n) for n in places[0]), len(places)


def _operands(result: NonFiniteResult) -> list[Any]:
    names = ("self", "other", "scalar", "scalars", "exponent", "tensor1", "tensor2")
    found = [
        result.arguments[name] for name in names if name in result.arguments
    ] or result.tensors()
    # The modulus of a complex number, as far as 0 and infinity go, says the same.
    return [
        o.abs() if isinstance(o, torch.Tensor) and o.is_complex() else o
        for o in found
        if isinstance(o, torch.Tensor | int | float)
    ]


def _plain(result: NonFiniteResult, values: list[float]) -> tuple[str, str]:
    if _overflows(result, values):
        text = " and ".join(spelled(v) for v in values)
        text = f"{result.name} of {text} is above {largest(result.out.dtype)}"
        return text, wider(result.out.dtype)
    text = f"{result.name} of " + " and ".join(spelled(v) for v in values)
    return text, f"keep the argument of `{result.name}` where it is finite: `clamp` it"


def _overflows(result: NonFiniteResult, values: list[float]) -> bool:
    """Return True if large finite operands produced an infinity."""
    return result.kind != NAN and any(1e3 < abs(v) < math.inf for v in values)


def _log(result: NonFiniteResult, values: list[float]) -> tuple[str, str]:
    name = result.name
    shift = -1.0 if name == "log1p" else 0.0
    text = f"{name} of {spelled(values[0])}"
    if values[0] == shift:
        return text, (
            "stay in log space (`log_softmax`, `logsigmoid`, `xlogy`), or `clamp` the argument to"
            " a small positive number"
        )
    return text, "keep the argument positive: `clamp(min=…)`, `softplus` or `exp` before it"


def _root(result: NonFiniteResult, values: list[float]) -> tuple[str, str]:
    text = f"{result.name} of {spelled(values[0])}"
    if values[0] == 0:
        return text, "add an eps inside the root"
    return text, "keep the argument above 0: `clamp(min=eps)` it, or compute the variance by `var`"


def _exp(result: NonFiniteResult, values: list[float]) -> tuple[str, str]:
    dtype, top = result.out.dtype, _largest_exponent(result)
    text = f"{result.name} of {spelled(values[0])} in {str(dtype)[6:]} (largest {top:.1f})"
    return text, (
        "bound the argument (`clamp(max=…)`), or use a form that stays in log space"
        " (`softplus`, `logsumexp`, `log_softmax`)"
    )


def _largest_exponent(result: NonFiniteResult) -> float:
    top = math.log(torch.finfo(result.out.dtype).max)
    return top / (math.log(2) if result.name == "exp2" else 1)


def _div(result: NonFiniteResult, values: list[float]) -> tuple[str, str]:
    top, bottom = values if len(values) == 2 else (float(result.kind != NAN), values[0])
    if bottom == 0:
        zero = top == 0
        return ("0 / 0" if zero else "division by zero"), _SAFE_DIVISOR
    text = f"{spelled(top)} / {spelled(bottom)}"
    if math.isinf(bottom):
        return text, "keep both sides finite"
    return f"{text} is above {largest(result.out.dtype)}", _SAFE_DIVISOR


def _mul(result: NonFiniteResult, values: list[float]) -> tuple[str, str]:
    if len(values) == 1:  # the other operand is overwritten
        if result.kind == NAN:
            return "0 · inf", _SAFE_INFINITY
        text = f"a product with {spelled(values[0])} is above {largest(result.out.dtype)}"
        return text, wider(result.out.dtype)
    if len(values) == 2 and 0 in values and any(math.isinf(v) for v in values):
        endless = next(v for v in values if math.isinf(v))
        return f"0 · {spelled(endless)}", _SAFE_INFINITY
    text = " · ".join(spelled(v) for v in values)
    if len(values) == 2 and values[0] == values[1]:
        text = f"{spelled(values[0])} squared"
    return f"{text} is above {largest(result.out.dtype)}", wider(result.out.dtype)


def _sum(result: NonFiniteResult, values: list[float]) -> tuple[str, str]:
    sign = "-" if result.name == "sub" else "+"
    text = f" {sign} ".join(spelled(v) for v in values)
    text = text if len(values) > 1 else f"a sum with {text}"
    if any(math.isinf(v) for v in values):
        return text, "do not add Inf and -Inf: use `where` for masks, not arithmetic"
    scale = result.number("alpha", 1.0)
    if scale != 1 and len(values) == 2:
        text = f"{spelled(values[0])} {sign} {spelled(scale)} · {spelled(values[1])}"
    return f"{text} is above {largest(result.out.dtype)}", wider(result.out.dtype)


def _pow(result: NonFiniteResult, values: list[float]) -> tuple[str, str]:
    base, exponent = values if len(values) == 2 else (values[0], math.nan)
    shown = f"({spelled(base)})" if base < 0 else spelled(base)
    text = f"{shown} ** {spelled(exponent)}"
    if base == 0:
        return text, "keep the base away from 0: add an eps, or `clamp(min=…)` it"
    if result.kind == NAN:
        return text, "keep the base positive: `clamp(min=eps)` it, or use `x.sign() * x.abs()**p`"
    text = f"{spelled(base)} squared" if exponent == 2 else text
    return f"{text} is above {largest(result.out.dtype)}", wider(result.out.dtype)


def _cast(result: NonFiniteResult, values: list[float]) -> tuple[str, str]:
    dtype = result.out.dtype
    size = "above" if values[0] > 0 else "in size above"
    return f"{spelled(values[0])} is {size} {largest(dtype)}", (
        "use bfloat16, keep this in float32, or make the values smaller before the cast"
    )


def _quotient(result: NonFiniteResult, values: list[float]) -> tuple[str, str]:
    """Explain ``self + value · tensor1 / tensor2``."""
    return _div(result, values[-2:])


_EXPLAINERS: dict[str, ElementExplainer] = {
    **dict.fromkeys(("log", "log2", "log10", "log1p"), _log),
    **dict.fromkeys(("sqrt", "rsqrt"), _root),
    **dict.fromkeys(("exp", "exp2", "expm1"), _exp),
    **dict.fromkeys(("div", "true_divide", "reciprocal"), _div),
    **dict.fromkeys(("add", "sub", "rsub"), _sum),
    "addcdiv": _quotient,
    "mul": _mul,
    "square": lambda result, values: _mul(result, [values[0], values[0]]),
    "pow": _pow,
    "to_copy": _cast,
    "copy": _cast,
}
