"""Operations that treat each element by itself: the first element that went wrong, in words."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from gradscope.explain.non_finite.levels import NAN, broken, level_of_number
from gradscope.explain.non_finite.reasons import Seen, Told, largest, spelled, wider

#: Of the operands at one element: the words, and the fix.
Element = Callable[[Seen, list[float]], tuple[str, str]]

_SAFE_DIVISOR = "keep the divisor away from 0: add an eps, or `clamp(min=…)` it"
_SAFE_INFINITY = "keep infinities out of the product: `masked_fill` or `where` instead of a factor"


def element(seen: Seen) -> Told | None:
    """The reason of an operation on single elements; None where the operands cannot be matched."""
    operands = _operands(seen)
    bad = broken(seen.out, seen.kind)
    shape = seen.out.shape
    try:
        spread = [o.expand(shape) if isinstance(o, torch.Tensor) else o for o in operands]
    except RuntimeError:
        return None
    where = _first(bad, spread, seen)
    if where is None:
        return None
    at, count = where
    values = [float(o[at].item()) if isinstance(o, torch.Tensor) else float(o) for o in spread]
    if not values:
        return None
    words, advice = _WORDS.get(seen.name, _plain)(seen, values)
    return Told(words, advice, count, seen.out.numel())


def fresh(seen: Seen) -> bool:
    """Whether an element went wrong whose operands are all finite."""
    if any(level_of_number(value) for value in seen.given.values()):
        return False
    try:
        spread = [tensor.expand(seen.out.shape) for tensor in seen.tensors()]
    except RuntimeError:
        return False
    bad = broken(seen.out, seen.kind)
    for operand in spread:
        bad = bad & torch.isfinite(operand)
    return bool(bad.any())


def _first(bad: torch.Tensor, spread: list[Any], seen: Seen) -> tuple[tuple[int, ...], int] | None:
    """The first element that went wrong though its operands were better; and how many did."""
    for operand in spread:
        if isinstance(operand, torch.Tensor) and operand.is_floating_point():
            bad = bad & (~torch.isnan(operand) if seen.kind == NAN else torch.isfinite(operand))
    places = bad.nonzero()
    if not len(places):
        return None
    return tuple(int(n) for n in places[0]), len(places)


def _operands(seen: Seen) -> list[Any]:
    names = ("self", "other", "scalar", "scalars", "exponent", "tensor1", "tensor2")
    found = [seen.given[name] for name in names if name in seen.given] or seen.tensors()
    # The modulus of a complex number, as far as 0 and infinity go, says the same.
    return [
        o.abs() if isinstance(o, torch.Tensor) and o.is_complex() else o
        for o in found
        if isinstance(o, torch.Tensor | int | float)
    ]


def _plain(seen: Seen, values: list[float]) -> tuple[str, str]:
    if _overflows(seen, values):
        said = " and ".join(spelled(v) for v in values)
        words = f"{seen.name} of {said} is above {largest(seen.out.dtype)}"
        return words, wider(seen.out.dtype)
    words = f"{seen.name} of " + " and ".join(spelled(v) for v in values)
    return words, f"keep the argument of `{seen.name}` where it is finite: `clamp` it"


def _overflows(seen: Seen, values: list[float]) -> bool:
    """Whether finite and large operands made an infinity."""
    return seen.kind != NAN and any(1e3 < abs(v) < math.inf for v in values)


def _log(seen: Seen, values: list[float]) -> tuple[str, str]:
    name = seen.name
    shift = -1.0 if name == "log1p" else 0.0
    words = f"{name} of {spelled(values[0])}"
    if values[0] == shift:
        return words, (
            "stay in logarithms (`log_softmax`, `logsigmoid`, `xlogy`), or `clamp` the argument to"
            " a small positive number"
        )
    return words, "keep the argument positive: `clamp(min=…)`, `softplus` or `exp` before it"


def _root(seen: Seen, values: list[float]) -> tuple[str, str]:
    words = f"{seen.name} of {spelled(values[0])}"
    if values[0] == 0:
        return words, "add an eps inside the root"
    return words, "keep the argument above 0: `clamp(min=eps)` it, or compute the variance by `var`"


def _exp(seen: Seen, values: list[float]) -> tuple[str, str]:
    dtype = seen.out.dtype
    top = math.log(torch.finfo(dtype).max) / (math.log(2) if seen.name == "exp2" else 1)
    words = f"{seen.name} of {spelled(values[0])} in {str(dtype)[6:]} (largest {top:.1f})"
    return words, (
        "bound the argument (`clamp(max=…)`), or use the form that never leaves the logarithm"
        " (`softplus`, `logsumexp`, `log_softmax`)"
    )


def _div(seen: Seen, values: list[float]) -> tuple[str, str]:
    top, bottom = values if len(values) == 2 else (float(seen.kind != NAN), values[0])
    if bottom == 0:
        zero = top == 0
        return ("0 / 0" if zero else "division by zero"), _SAFE_DIVISOR
    words = f"{spelled(top)} / {spelled(bottom)}"
    if math.isinf(bottom):
        return words, "keep both sides finite"
    return f"{words} is above {largest(seen.out.dtype)}", _SAFE_DIVISOR


def _mul(seen: Seen, values: list[float]) -> tuple[str, str]:
    if len(values) == 1:  # the other operand is overwritten
        if seen.kind == NAN:
            return "0 · inf", _SAFE_INFINITY
        words = f"a product with {spelled(values[0])} is above {largest(seen.out.dtype)}"
        return words, wider(seen.out.dtype)
    if len(values) == 2 and 0 in values and any(math.isinf(v) for v in values):
        endless = next(v for v in values if math.isinf(v))
        return f"0 · {spelled(endless)}", _SAFE_INFINITY
    words = " · ".join(spelled(v) for v in values)
    if len(values) == 2 and values[0] == values[1]:
        words = f"{spelled(values[0])} squared"
    return f"{words} is above {largest(seen.out.dtype)}", wider(seen.out.dtype)


def _sum(seen: Seen, values: list[float]) -> tuple[str, str]:
    sign = "-" if seen.name == "sub" else "+"
    words = f" {sign} ".join(spelled(v) for v in values)
    words = words if len(values) > 1 else f"a sum with {words}"
    if any(math.isinf(v) for v in values):
        return words, "keep the infinities apart: `where` on what is masked, not arithmetic"
    scale = seen.number("alpha", 1.0)
    if scale != 1 and len(values) == 2:
        words = f"{spelled(values[0])} {sign} {spelled(scale)} · {spelled(values[1])}"
    return f"{words} is above {largest(seen.out.dtype)}", wider(seen.out.dtype)


def _pow(seen: Seen, values: list[float]) -> tuple[str, str]:
    base, exponent = values if len(values) == 2 else (values[0], math.nan)
    shown = f"({spelled(base)})" if base < 0 else spelled(base)
    words = f"{shown} ** {spelled(exponent)}"
    if base == 0:
        return words, "keep the base away from 0: add an eps, or `clamp(min=…)` it"
    if seen.kind == NAN:
        return words, "keep the base positive: `clamp(min=eps)` it, or use `x.sign() * x.abs()**p`"
    words = f"{spelled(base)} squared" if exponent == 2 else words
    return f"{words} is above {largest(seen.out.dtype)}", wider(seen.out.dtype)


def _cast(seen: Seen, values: list[float]) -> tuple[str, str]:
    dtype = seen.out.dtype
    size = "above" if values[0] > 0 else "in size above"
    return f"{spelled(values[0])} is {size} {largest(dtype)}", (
        "use bfloat16, keep this in float32, or make the values smaller before the cast"
    )


def _quotient(seen: Seen, values: list[float]) -> tuple[str, str]:
    """``self + value · tensor1 / tensor2``."""
    return _div(seen, values[-2:])


_WORDS: dict[str, Element] = {
    **dict.fromkeys(("log", "log2", "log10", "log1p"), _log),
    **dict.fromkeys(("sqrt", "rsqrt"), _root),
    **dict.fromkeys(("exp", "exp2", "expm1"), _exp),
    **dict.fromkeys(("div", "true_divide", "reciprocal"), _div),
    **dict.fromkeys(("add", "sub", "rsub"), _sum),
    "addcdiv": _quotient,
    "mul": _mul,
    "square": lambda seen, values: _mul(seen, [values[0], values[0]]),
    "pow": _pow,
    "to_copy": _cast,
    "copy": _cast,
}
