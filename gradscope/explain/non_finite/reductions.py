"""Operations that bring many elements together: rows, sums, norms, products of matrices, losses."""

from __future__ import annotations

import math

import torch

from gradscope.explain.non_finite.levels import NAN, broken, level
from gradscope.explain.non_finite.reasons import Seen, Told, Words, largest, spelled, top_of, wider


def fold(seen: Seen) -> Told | None:
    """The reason of an operation of this kind; None of one that is none of them."""
    attention = seen.name.startswith("scaled_dot_product")
    words = _attention if attention else _WORDS.get(seen.name)
    return None if words is None else words(seen)


def anything(seen: Seen) -> Told:
    """What can be said of any operation: what it was given."""
    count = _count(seen)
    tensors = seen.tensors()
    if any(t.numel() == 0 for t in tensors):
        return Told(f"{seen.name} of no values", _NOT_EMPTY, count)
    if any(level(t) for t in tensors):
        return Told("infinities among the values", None, count)
    tops = [top_of(t) for t in tensors]
    if seen.kind != NAN and max(tops, default=0.0) > math.sqrt(torch.finfo(seen.out.dtype).max):
        return _too_large(seen, f"{seen.name} of values up to {spelled(max(tops))}")
    if not tensors:
        return Told(seen.name, None, count)
    values = tensors[0].detach()
    values = values.abs() if values.is_complex() else values.double()
    low, high = spelled(float(values.min())), spelled(float(values.max()))
    return Told(f"{seen.name} of values from {low} to {high}", None, count)


_NOT_EMPTY = "leave the term out where there is nothing to average, or divide by `max(count, 1)`"


def _count(seen: Seen) -> int:
    return int(broken(seen.out, seen.kind).sum())


def _too_large(seen: Seen, words: str) -> Told:
    dtype = seen.out.dtype
    return Told(f"{words} is above {largest(dtype)}", wider(dtype), _count(seen))


def _softmax(seen: Seen) -> Told | None:
    scores, dim = seen.tensors()[0], int(seen.number("dim", -1))
    name = seen.name.removeprefix("safe_")
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
    return Told(what + _rows(bad), advice, _count(seen))


def _logsumexp(seen: Seen) -> Told | None:
    told = _softmax(seen)
    return told and Told(told.reason, "leave the rows out that have nothing to sum", told.count)


def _rows(bad: torch.Tensor) -> str:
    """Which rows: `` (row 2 of 8)``, counted from 0 as an index would."""
    places = bad.nonzero().tolist()
    if bad.numel() <= 1:
        return ""
    index = places[0][0] if bad.dim() == 1 else tuple(places[0])
    more = f" and {len(places) - 1} more" if len(places) > 1 else ""
    return f" (row {index}{more} of {bad.numel()})"


def _spread(seen: Seen) -> Told | None:
    values = seen.tensors()[0]
    # `var_mean` gives two results; both are of the same number of rows.
    size = values.numel() // max(seen.out.numel(), 1)
    name = "std" if seen.name.startswith("std") else "var"
    if size > 1:
        return None
    said = "one value" if size else "no values"
    advice = "pass `correction=0` (`unbiased=False`), or leave out a batch of one"
    return Told(f"{name} of {said}", advice, _count(seen))


def _total(seen: Seen) -> Told | None:
    values = seen.tensors()[0]
    if values.numel() == 0:
        return Told(f"{seen.name} of no values", _NOT_EMPTY, _count(seen))
    if level(values):
        return Told("inf - inf in a sum", "keep the infinities out of it", _count(seen))
    size = values.numel() // max(seen.out.numel(), 1)
    return _too_large(seen, f"the {seen.name} of {size} values up to {spelled(top_of(values))}")


def _norm(seen: Seen) -> Told | None:
    values = seen.tensors()[0]
    return _too_large(seen, f"the norm of values up to {spelled(top_of(values))}")


def _products(seen: Seen) -> Told | None:
    tensors = sorted(seen.tensors(), key=lambda t: t.dim(), reverse=True)[:2]
    if any(level(t) for t in tensors):
        advice = "keep the infinities out of the product: mask after it, not before"
        return Told("0 · inf or inf - inf in a product", advice, _count(seen))
    first, *others = [spelled(top_of(t)) for t in tensors]
    return _too_large(
        seen, f"a sum of products of values up to {first} and {(others or [first])[0]}"
    )


def _attention(seen: Seen) -> Told | None:
    query, key = (seen.given.get(name) for name in ("query", "key"))
    if not isinstance(query, torch.Tensor) or not isinstance(key, torch.Tensor):
        return None
    if level(query) or level(key):
        return Told("scores of inf - inf or 0 · inf", "keep queries and keys finite", _count(seen))
    tops = f"{spelled(top_of(query))} and keys up to {spelled(top_of(key))}"
    return _too_large(seen, f"a score of queries up to {tops}")


def _inverse(seen: Seen) -> Told | None:
    advice = "add a small multiple of the identity before it is inverted"
    return Told("a matrix that has no inverse", advice, _count(seen))


def _direction(seen: Seen) -> Told | None:
    advice = "initialise the direction (`original1`, `weight_v`) away from 0"
    return Told("0 / 0: a direction of length 0", advice, _count(seen))


def _normalised(seen: Seen) -> Told | None:
    eps = seen.number("eps", seen.number("epsilon", -1.0))
    values = seen.tensors()[0]
    if any(level(t) for t in seen.tensors()):
        return None
    kept = seen.given.get("running_var")
    if isinstance(kept, torch.Tensor) and not seen.given.get("training", True):
        lowest = float(kept.min())
        if lowest + eps <= 0:
            said = f"a running variance of {spelled(lowest)}"
            return Told(said, "load or reset the running statistics of the layer", _count(seen))
    if eps == 0:
        what = "mean square" if "rms" in seen.name else "variance"
        return Told(
            f"{what} 0 with eps=0: 0 · inf",
            "give the layer an eps above 0, such as 1e-5",
            _count(seen),
        )
    return _too_large(seen, f"the variance of values up to {spelled(top_of(values))}")


def _picked(seen: Seen) -> Told | None:
    """The negative log-likelihood: what it averages over."""
    target, weight = seen.given.get("target"), seen.given.get("weight")
    ignored = int(seen.number("ignore_index", -100))
    if not isinstance(target, torch.Tensor) or seen.kind != NAN:
        return None
    kept = int((target != ignored).sum())
    if kept == 0:
        said = (
            f"all {target.numel()} are ignore_index {ignored}" if target.numel() else "it is empty"
        )
        advice = "skip such a batch, or sum (`reduction='sum'`) and divide by `max(count, 1)`"
        return Told(f"the mean over no target ({said})", advice, 1)
    if isinstance(weight, torch.Tensor) and not bool(weight[target[target != ignored]].any()):
        advice = "give every class that occurs a weight above 0"
        return Told("the mean over targets whose weights add up to 0", advice, 1)
    return None


def _aligned(seen: Seen) -> Told | None:
    advice = "drop such samples, or pass `zero_infinity=True`"
    return Told("a target longer than what its input has room for", advice, _count(seen))


def _squares(seen: Seen) -> Told | None:
    first, second = seen.given.get("self"), seen.given.get("target")
    if not isinstance(first, torch.Tensor) or not isinstance(second, torch.Tensor):
        return None
    if seen.out.dim() == 0 and first.numel() == 0:
        return Told(f"{seen.name} of no values", _NOT_EMPTY, 1)
    gap = spelled(top_of(first.double() - second.double()))
    return _too_large(seen, f"the square of differences up to {gap}")


_WORDS: dict[str, Words] = {
    **dict.fromkeys(("softmax", "log_softmax", "safe_softmax"), _softmax),
    "logsumexp": _logsumexp,
    **dict.fromkeys(("std", "var", "std_mean", "var_mean"), _spread),
    **dict.fromkeys(("sum", "mean", "cumsum", "nansum"), _total),
    **dict.fromkeys(("linalg_vector_norm", "norm"), _norm),
    **dict.fromkeys(
        (
            "mm",
            "addmm",
            "bmm",
            "baddbmm",
            "addbmm",
            "mv",
            "addmv",
            "dot",
            "vdot",
            "linear",
            "convolution",
            "mkldnn_linear",
            "mkldnn_convolution",
            "thnn_conv2d",
        ),
        _products,
    ),
    **dict.fromkeys(
        (
            "native_layer_norm",
            "native_group_norm",
            "native_batch_norm",
            "native_batch_norm_legit",
            "native_batch_norm_legit_no_training",
            "batch_norm_with_update",
            "batch_norm_no_update",
            "cudnn_batch_norm",
            "fused_rms_norm",
        ),
        _normalised,
    ),
    **dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward"), _picked),
    **dict.fromkeys(("linalg_inv_ex", "linalg_solve_ex"), _inverse),
    "weight_norm_interface": _direction,
    "ctc_loss": _aligned,
    **dict.fromkeys(("mse_loss", "smooth_l1_loss", "huber_loss"), _squares),
}
