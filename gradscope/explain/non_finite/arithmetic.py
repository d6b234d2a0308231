"""Finds the reason for a NaN or Inf of any operation: in its elements, rows, sums, products, or
inputs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from gradscope.explain.non_finite.reasons import (
    NAN,
    Explainer,
    NonFiniteResult,
    Reason,
    broken,
    largest,
    level,
    level_of_number,
    magnitude,
    spelled,
    wider,
)
from gradscope.explain.shared.operations import Trait, by_operator

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
    # For 0 and infinity, the modulus of a complex number is enough.
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
    return text, f"`clamp` the argument of `{result.name}` to the range with finite results"


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


def reason_of(result: NonFiniteResult) -> Reason:
    """Return the arithmetic that failed, or the name of the operation if unknown."""
    try:
        reason = reduction(result)
        if reason is None and result.pointwise:
            reason = element(result)
        reason = reason or anything(result)
        if reason.count is not None:
            return reason
        return replace(reason, count=int(broken(result.out, result.kind).sum()))
    except (RuntimeError, NotImplementedError, TypeError, IndexError):
        return Reason(result.name)  # a kind of tensor that does not let its values be read


def reduction(result: NonFiniteResult) -> Reason | None:
    """Return the reason for a reduction; None for another operation."""
    operation = by_operator(result.name)
    if operation.name.startswith("scaled_dot_product"):
        return _attention(result)
    explainer = _BY_NAME.get(operation.name)
    if explainer is None:
        explainer = next((e for trait, e in _BY_TRAIT.items() if operation.has(trait)), None)
    return None if explainer is None else explainer(result)


def anything(result: NonFiniteResult) -> Reason:
    """Return the reason for any operation, by its inputs."""
    tensors = result.tensors()
    if any(t.numel() == 0 for t in tensors):
        return Reason(f"{result.name} of no values", _NOT_EMPTY)
    if any(level(t) for t in tensors):
        return Reason("Inf among the values")
    tops = [magnitude(t) for t in tensors]
    if result.kind != NAN and max(tops, default=0.0) > math.sqrt(torch.finfo(result.out.dtype).max):
        return _too_large(result, f"{result.name} of values up to {spelled(max(tops))}")
    if not tensors:
        return Reason(result.name)
    values = tensors[0].detach()
    values = values.abs() if values.is_complex() else values.double()
    low, high = spelled(float(values.min())), spelled(float(values.max()))
    return Reason(f"{result.name} of values from {low} to {high}")


_NOT_EMPTY = "skip the term if there is nothing to average, or divide by `max(count, 1)`"


def _too_large(result: NonFiniteResult, text: str) -> Reason:
    dtype = result.out.dtype
    return Reason(f"{text} is above {largest(dtype)}", wider(dtype))


def _softmax(result: NonFiniteResult) -> Reason | None:
    scores, dim = result.tensors()[0], int(result.number("dim", -1))
    name = result.name.removeprefix("safe_")
    if scores.dim() == 0:
        return None
    bad = (scores == -math.inf).all(dim)
    what = f"{name} over a row of -inf"
    advice = (
        "leave at least one entry of each row unmasked, or set the rows that are fully masked to 0"
        " after it (`torch.where` before and after)"
    )
    if not bool(bad.any()):
        bad = (scores == math.inf).any(dim)
        what = f"{name} over a row with inf (inf - inf)"
        advice = "keep the scores finite"
        if not bool(bad.any()):
            return None
    return Reason(what + _rows(bad), advice)


def _logsumexp(result: NonFiniteResult) -> Reason | None:
    reason = _softmax(result)
    return reason and Reason(reason.text, "skip rows that have nothing to sum")


def _rows(bad: torch.Tensor) -> str:
    """Return the rows that are True as text: `` (row 2 of 8)``, counted from 0 as an index is."""
    places = bad.nonzero().tolist()
    if bad.numel() <= 1:
        return ""
    index = places[0][0] if bad.dim() == 1 else tuple(places[0])
    more = f" and {len(places) - 1} more" if len(places) > 1 else ""
    return f" (row {index}{more} of {bad.numel()})"


def _spread(result: NonFiniteResult) -> Reason | None:
    values = result.tensors()[0]
    # `var_mean` gives two results; both are of the same number of rows.
    size = values.numel() // max(result.out.numel(), 1)
    name = "std" if result.name.startswith("std") else "var"
    if size > 1:
        return None
    text = "one value" if size else "no values"
    advice = "pass `correction=0` (`unbiased=False`), or leave out a batch of one"
    return Reason(f"{name} of {text}", advice)


def _total(result: NonFiniteResult) -> Reason | None:
    values = result.tensors()[0]
    if values.numel() == 0:
        return Reason(f"{result.name} of no values", _NOT_EMPTY)
    if level(values):
        return Reason("inf - inf in a sum", "keep Inf out of it")
    size = values.numel() // max(result.out.numel(), 1)
    return _too_large(
        result, f"the {result.name} of {size} values up to {spelled(magnitude(values))}"
    )


def _norm(result: NonFiniteResult) -> Reason | None:
    values = result.tensors()[0]
    return _too_large(result, f"the norm of values up to {spelled(magnitude(values))}")


def _products(result: NonFiniteResult) -> Reason | None:
    tensors = sorted(result.tensors(), key=lambda t: t.dim(), reverse=True)[:2]
    if any(level(t) for t in tensors):
        advice = "keep Inf out of the product: mask after it, not before"
        return Reason("0 · inf or inf - inf in a product", advice)
    first, *others = [spelled(magnitude(t)) for t in tensors]
    return _too_large(
        result, f"a sum of products of values up to {first} and {(others or [first])[0]}"
    )


def _attention(result: NonFiniteResult) -> Reason | None:
    query, key = (result.arguments.get(name) for name in ("query", "key"))
    if not isinstance(query, torch.Tensor) or not isinstance(key, torch.Tensor):
        return None
    if level(query) or level(key):
        return Reason("scores of inf - inf or 0 · inf", "keep queries and keys finite")
    tops = f"{spelled(magnitude(query))} and keys up to {spelled(magnitude(key))}"
    return _too_large(result, f"a score of queries up to {tops}")


def _inverse(result: NonFiniteResult) -> Reason | None:
    advice = "add a small multiple of the identity before the inversion"
    return Reason("a matrix that has no inverse", advice)


def _direction(result: NonFiniteResult) -> Reason | None:
    advice = "initialise the direction (`original1`, `weight_v`) away from 0"
    return Reason("0 / 0: a direction of length 0", advice)


def _normalised(result: NonFiniteResult) -> Reason | None:
    eps = result.number("eps", result.number("epsilon", -1.0))
    values = result.tensors()[0]
    if any(level(t) for t in result.tensors()):
        return None
    kept = result.arguments.get("running_var")
    if isinstance(kept, torch.Tensor) and not result.arguments.get("training", True):
        lowest = float(kept.min())
        if lowest + eps <= 0:
            text = f"a running variance of {spelled(lowest)}"
            return Reason(text, "load or reset the running statistics of the layer")
    if eps == 0:
        what = "mean square" if "rms" in result.name else "variance"
        return Reason(
            f"{what} 0 with eps=0: 0 · inf", "give the layer an eps above 0, such as 1e-5"
        )
    return _too_large(result, f"the variance of values up to {spelled(magnitude(values))}")


_SKIP = "skip such a batch, or sum (`reduction='sum'`) and divide by `max(count, 1)`"


def _picked(result: NonFiniteResult) -> Reason | None:
    """Explain a negative log-likelihood by the entries that it averages over."""
    target, weight = result.arguments.get("target"), result.arguments.get("weight")
    ignored = int(result.number("ignore_index", -100))
    if not isinstance(target, torch.Tensor) or result.kind != NAN:
        return None
    kept = int((target != ignored).sum())
    if kept == 0:
        if not target.numel():
            return Reason("the mean over no target: the batch is empty", _SKIP)
        advice = f"check how the labels are masked (`(labels != {ignored}).sum()`), or {_SKIP}"
        all_of_them = f"all {target.numel():,} labels are ignore_index {ignored}"
        return Reason(f"{all_of_them}, so the mean has no target", advice)
    if isinstance(weight, torch.Tensor) and not bool(weight[target[target != ignored]].any()):
        advice = "give every class in the data a weight above 0"
        return Reason("the mean over targets with weights that sum to 0", advice)
    return None


def _aligned(result: NonFiniteResult) -> Reason | None:
    advice = "drop such samples, or pass `zero_infinity=True`"
    return Reason("a target that is too long for its input", advice)


def _squares(result: NonFiniteResult) -> Reason | None:
    first, second = result.arguments.get("self"), result.arguments.get("target")
    if not isinstance(first, torch.Tensor) or not isinstance(second, torch.Tensor):
        return None
    if result.out.dim() == 0 and first.numel() == 0:
        return Reason(f"{result.name} of no values", _NOT_EMPTY)
    difference = spelled(magnitude(first.double() - second.double()))
    return _too_large(result, f"the square of differences up to {difference}")


_BY_TRAIT: dict[Trait, Explainer] = {
    Trait.SOFTMAX: _softmax,
    Trait.SPREAD: _spread,
    Trait.TOTAL: _total,
    Trait.LENGTH: _norm,
    Trait.PRODUCTS: _products,
    Trait.NORMALISES: _normalised,
    Trait.SQUARES: _squares,
}
_BY_NAME: dict[str, Explainer] = {
    "logsumexp": _logsumexp,
    "nll_loss": _picked,
    "nll_loss2d": _picked,
    "linalg_inv_ex": _inverse,
    "linalg_solve_ex": _inverse,
    "weight_norm_interface": _direction,
    "ctc_loss": _aligned,
}
