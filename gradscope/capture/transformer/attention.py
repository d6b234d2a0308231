"""Computes the figures of attention by head, from queries and keys, or from scores before the
softmax.

Some rows are computed again in float64, without a gradient, so the script's kernel and numbers do
not change. The result is a small tensor on the device, read after backward.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node

from gradscope.capture import one_pass


def evenly(count: int, most: int) -> list[int]:
    """Return at most ``most`` numbers from 0 to ``count`` - 1, always with the last."""
    if count <= most:
        return list(range(count))
    if most <= 1:
        return [count - 1]
    return [i * (count - 1) // (most - 1) for i in range(most)]


# : Operations allowed between the product of q and k and the softmax: scale, bias, mask, softcap,
# sink, dtype, shape.
_BETWEEN = {
    *("Mul", "Div", "Add", "Sub", "Neg", "Tanh", "Clamp", "ClampMin", "ClampMax"),
    *("MaskedFill", "Where", "IndexPut", "Cat", "Slice", "Index", "Gather"),
    *("View", "UnsafeView", "ReshapeAlias", "Expand", "Transpose", "Permute", "Unsqueeze"),
    *("Squeeze", "ToCopy", "Clone", "Alias", "CopySlices", "Pad", "ConstantPadNd"),
}
#: Operations that only move or scale an operand.
_MOVES = {
    *("T", "Transpose", "Permute", "View", "UnsafeView", "ReshapeAlias", "Expand", "Unsqueeze"),
    *("Squeeze", "ToCopy", "Clone", "Alias"),
}
_PRODUCTS = {"Bmm": slice(0, 2), "Baddbmm": slice(1, 3), "Mm": slice(0, 2)}
#: Number of nodes to visit.
_MOST = 96


def is_product(scores: Tensor) -> bool:
    """Return True for attention scores: a matrix product of two tensors, neither of them a
    parameter.

    False without a graph, as under ``no_grad``.
    """
    waiting = [scores.grad_fn]
    seen: set[Node] = set()  # the nodes, not their ids: a node's Python object may be recreated
    while waiting and len(seen) < _MOST:
        node = waiting.pop(0)
        if node is None or node in seen:
            continue
        seen.add(node)
        name = operation(node)
        if name in _PRODUCTS:
            operands = node.next_functions[_PRODUCTS[name]]
            if not any(_is_parameter(operand) for operand, _ in operands):
                return True
        elif name in _BETWEEN:
            waiting += [before for before, _ in node.next_functions]
    return False


def operation(node: Node) -> str:
    """Return the operation of a node: ``Bmm`` for ``BmmBackward0``."""
    return type(node).__name__.rstrip("0123456789").removesuffix("Backward")


def _is_parameter(node: Node | None) -> bool:
    """Return True if an operand is a leaf, possibly moved or cast."""
    while node is not None and operation(node) in _MOVES:
        node = node.next_functions[0][0] if node.next_functions else None
    return node is not None and operation(node) == "AccumulateGrad"


#: Number of rows of each head to read, and the largest number of logits of a call.
ROWS, LOGITS = 64, 1 << 21
#: With more samples, only some of them are read.
_SAMPLES = 8
#: Largest value of a masked entry: masks add -inf, the lowest number, -1e9 or -10,000.
_MASKED = -9e3
#: The largest weight times the number of keys, above which weights are not equal.
_UNEVEN = 1.001
#: The place of the mean weight of later keys in the figures of a head.
_LATER = 5
#: Attributes with the number of heads.
_HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "nhead", "heads")


@dataclass(frozen=True, slots=True)
class Measured:
    """The figures [measures, heads] of one attention, on its device, and its sizes."""

    figures: Tensor
    queries: int
    keys: int
    rows: int


def of_queries(
    query: Tensor,
    key: Tensor,
    *,
    mask: Tensor | None,
    causal: bool,
    scale: float | None,
    grouped: bool,
    heads: int | None,
) -> Measured:
    """Measure the attention of ``scaled_dot_product_attention``.

    Args:
        query: [..., heads, queries, width].
        key: [..., heads, keys, width]; with ``grouped``, fewer heads.
        mask: boolean (True is visible) or added; broadcast to [..., heads, queries, keys].
        causal: a query sees the keys up to its own position.
        scale: the factor of the products; None: 1 / √width.
        grouped: several heads share each key.
        heads: the number of heads in the leading axis of tensors with three axes.
    """
    if mask is not None and query.dim() == mask.dim() == 3:
        mask = _with_heads(mask, heads)
    query, key = _with_heads(query, heads), _with_heads(key, heads)
    *batch, count, queries, width = query.shape
    keys = key.shape[-2]
    key = key.expand(*batch, *key.shape[-3:])
    if mask is not None:
        mask = mask.expand(*batch, count, queries, keys)
    factor = 1 / math.sqrt(width) if scale is None else float(scale)
    groups = count // key.shape[-3] if grouped else 1
    samples, places = _sampled(batch, count, queries, keys)
    places_on = torch.tensor(places, device=query.device)
    kind = exact(query)
    some = _chosen(query, samples, places_on).to(kind) * factor
    every = _chosen(key, samples).to(kind)
    if groups > 1:
        every = every.repeat_interleave(groups, 1)
    logits = some @ every.transpose(-1, -2)
    if mask is not None:
        own = _chosen(mask, samples, places_on)
        if own.dtype == torch.bool:
            logits.masked_fill_(~own, -math.inf)
        else:
            logits += own.to(kind)
    # A row without a visible key is zero here, not NaN.
    figures = _by_head(logits, places_on, same=queries == keys, causal=causal, safe=True)
    return Measured(figures, queries, keys, _rows(samples, places))


def of_scores(scores: Tensor, dim: int, heads: int | None) -> Measured:
    """Measure the attention of a softmax over ``dim`` of the scores.

    Args:
        scores: [..., heads, queries, keys], with all masks and biases.
        dim: the axis of the keys.
        heads: the number of heads of the module, if known.
    """
    scores = scores.movedim(dim, -1)
    if heads is not None and scores.dim() == 4 and scores.shape[-3] != heads:
        if scores.shape[-2] == heads:
            scores = scores.transpose(-2, -3)
        elif scores.shape[0] == heads:
            scores = scores.transpose(0, 1)
    elif heads is not None and scores.dim() == 5 and heads == scores.shape[1] * scores.shape[2]:
        scores = scores.flatten(1, 2)
    scores = _with_heads(scores, heads)
    *batch, count, queries, keys = scores.shape
    samples, places = _sampled(batch, count, queries, keys)
    places_on = torch.tensor(places, device=scores.device)
    kind = exact(scores)
    logits = _chosen(scores, samples, places_on).to(kind)
    figures = _by_head(logits, places_on, same=queries == keys, causal=False, safe=False)
    return Measured(figures, queries, keys, _rows(samples, places))


def heads_of(module: nn.Module) -> int | None:
    """Return the number of heads by the module's attributes."""
    for name in _HEADS:
        found: Any = getattr(module, name, None)
        if isinstance(found, int) and not isinstance(found, bool) and found > 0:
            return found
    return None


def exact(tensor: Tensor) -> torch.dtype:
    """Return the tensor in float64 if the device supports it, else in float32."""
    return torch.float32 if tensor.device.type == "mps" else torch.float64


def _with_heads(tensor: Tensor, heads: int | None) -> Tensor:
    """Return the tensor with an axis for the heads, the third from the end."""
    if tensor.dim() == 3 and heads is not None and heads > 1 and tensor.shape[0] % heads == 0:
        return tensor.view(-1, heads, *tensor.shape[1:])
    while tensor.dim() < 3:
        tensor = tensor.unsqueeze(0)
    return tensor if tensor.dim() > 3 else tensor.unsqueeze(1)


def _sampled(
    batch: Sequence[int], heads: int, queries: int, keys: int
) -> tuple[list[tuple[int, ...]], list[int]]:
    """Choose samples, as indices of the leading axes, and queries of each."""
    total = math.prod(batch)
    rows = max(8, min(ROWS, LOGITS // max(1, heads * keys)))
    places = evenly(queries, max(rows // 4, rows // max(1, total)))
    samples = evenly(total, min(_SAMPLES, max(1, rows // len(places))))
    return [_unravelled(one, batch) for one in samples], places


def _unravelled(flat: int, sizes: Sequence[int]) -> tuple[int, ...]:
    found: list[int] = []
    for size in reversed(sizes):
        flat, rest = divmod(flat, size)
        found.append(rest)
    return tuple(reversed(found))


def _chosen(
    tensor: Tensor, samples: Sequence[tuple[int, ...]], rows: Tensor | None = None
) -> Tensor:
    """Return samples of a tensor [..., heads, rows, width], with these rows or with all."""
    if tensor.dim() == 4 and len(samples) == len(tensor):  # all of them, in their order
        return tensor if rows is None else tensor.index_select(-2, rows)
    parts = [tensor[at] if rows is None else tensor[at].index_select(-2, rows) for at in samples]
    return torch.stack(parts) if len(parts) > 1 else parts[0].unsqueeze(0)


def _rows(samples: Sequence[object], places: Sequence[object]) -> int:
    return len(samples) * len(places)


def _by_head(logits: Tensor, places: Tensor, *, same: bool, causal: bool, safe: bool) -> Tensor:
    """Compute figures [measures, heads] of logits [samples, heads, rows, keys]; NaN means unknown.

    Args:
        places: the positions of the rows.
        same: keys have the same positions.
        causal: a row sees the keys up to its own position.
        safe: a row without a visible key gets zeros instead of NaN.
    """
    rows = one_pass.attention(logits.contiguous(), places, masked=_MASKED, causal=causal)
    if rows is None:
        rows = _by_row(logits, places, causal=causal)
    figures = one_pass.heads(rows, masked=_MASKED, uneven=_UNEVEN, safe=safe)
    if figures is None:
        figures = _of_rows(rows, safe=safe)
    if not same:
        figures[_LATER] = math.nan
    return figures


def _of_rows(rows: Tensor, *, safe: bool) -> Tensor:
    """Compute what ``one_pass.heads`` does, with PyTorch."""
    visible, most, share, entropy, first, later = rows
    lost = share.isnan()
    if safe:
        lost = lost & (most != -math.inf)
    counted = (visible > 1) & ~lost
    largest = most.masked_fill(~(most.isfinite() & (most > _MASKED)), -math.inf).amax((0, 2))
    if not safe:
        # If the script subtracts the largest logit from each row, as gpt-oss does, that logit is
        # unknown. Logits that are all zero have equal weights.
        shifted = ((most == 0) | (visible == 0)).all() & (share * visible > _UNEVEN).any()
        largest = largest.masked_fill(shifted, -math.inf)
    least = entropy.masked_fill(~counted, math.inf).amin((0, 2))
    relative = entropy / visible.clamp_min(2).log()
    # A mean over no row is 0 / 0, NaN.
    sums = torch.stack([entropy, relative, first, later]).masked_fill(~counted, 0.0).sum((1, 3))
    mean, mean_relative, mean_first, mean_later = sums / counted.sum((0, 2))
    shares = torch.stack([visible == 0, lost]).to(rows.dtype).mean((1, 3))
    figures = [
        largest.masked_fill(largest == -math.inf, math.nan),
        mean,
        least.masked_fill(least == math.inf, math.nan),
        mean_relative,
        mean_first,
        mean_later,
        *shares,
    ]
    return torch.stack(figures)


def _by_row(logits: Tensor, places: Tensor, *, causal: bool) -> Tensor:
    """Compute what ``one_pass.attention`` does, with PyTorch."""
    later = torch.arange(logits.shape[-1], device=logits.device) > places[:, None]
    if causal:
        logits = logits.masked_fill(later, -math.inf)
    visible = logits.shape[-1] - (logits <= _MASKED).sum(-1)
    weights = torch._softmax(logits, -1, False)  # the public name may be observed
    most, share = logits.amax(-1), weights.amax(-1)  # NaN if one is
    # Entropy = log Σe - Σ(weight·x), with x the logits minus their largest, e = exp(x), weight = e
    # ⁄ Σe. If a weight is 0, x may be -inf. Faster than PyTorch's `entr`, and than filling with a
    # mask.
    below = (logits - most.unsqueeze(-1)).clamp_min_(torch.finfo(logits.dtype).min)
    entropy = -share.log() - below.mul_(weights).sum(-1)
    ahead = (weights * later.to(weights.dtype)).sum(-1)
    return torch.stack([visible.to(logits.dtype), most, share, entropy, weights[..., 0], ahead])
