"""Finds the reason for a NaN or Inf of any operation: in its elements, rows, sums, products, or
inputs."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from gradscope.explain.non_finite.elements import element
from gradscope.explain.non_finite.reasons import (
    NAN,
    Explainer,
    NonFiniteResult,
    Reason,
    broken,
    largest,
    level,
    magnitude,
    spelled,
    wider,
)
from gradscope.explain.shared.operations import Trait, by_operator


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
