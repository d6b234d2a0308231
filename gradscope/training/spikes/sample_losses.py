"""Reads the loss of each sample from the loss graph, while the graph exists."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.graph import Node

from gradscope.capture.graph import LEAF
from gradscope.records.spike import SpikeToken
from gradscope.training.loop.loss_walk import kind, saved, shape_of, signed
from gradscope.training.loop.weighted_terms import constant_factor, element, weighted_terms

#: Operations of a scalar loss beside its loss function.
_SCALAR = frozenset({"AddBackward", "SubBackward", "MulBackward", "DivBackward", "NegBackward"})
_REDUCTIONS = frozenset({"MeanBackward", "SumBackward"})
#: Number of operations to visit.
_MOST = 32
#: The largest number of rows that a term of a loss compares: three in a triplet.
_ROWS = 4
#: PyTorch's number of a loss function's mean.
_MEAN = 1


@dataclass(frozen=True, slots=True)
class RowLosses:
    """The terms of one loss: ``counts`` marks those that count, ``target`` is the loss's target.

    All but the target are flat. ``predicted`` has the loss that each term would have with the class
    that the model finds most likely as its target; None for other losses.
    """

    values: torch.Tensor
    counts: torch.Tensor
    target: torch.Tensor | None
    predicted: torch.Tensor | None = None

    def of_samples(self, count: int) -> list[float] | None:
        """Return the mean of each sample's terms; None if their numbers of terms differ."""
        if not count or self.values.numel() % count:
            return None
        values = self.values.reshape(count, -1).double()
        counts = self.counts.reshape(count, -1)
        sums = torch.where(counts, values, 0.0).sum(1)
        means: list[float] = (sums / counts.sum(1).clamp_min(1)).tolist()
        return means

    def rows_each(self, count: int) -> int:
        """Return the number of rows of a call that each term compares, as of a triplet loss after
        one call on anchors, positives and negatives; 1 for other losses.

        ``count`` is the number of rows.
        """
        terms = self.values.numel()
        rows = count // terms if terms > 1 and count % terms == 0 else 1
        return rows if 1 < rows <= _ROWS else 1

    def terms_of_rows(self, count: int, gets_gradient: torch.Tensor) -> list[int] | None:
        """Return the term of each row of a call with several rows for each term; None if unknown.

        The rows are batch after batch, or those of a term are side by side. A term of 0, as of a
        hinge, sends no gradient to its rows: only one of both orders fits.

        Args:
            count: the number of rows.
            gets_gradient: True for the rows with a gradient, [count].
        """
        terms, rows = self.values.numel(), self.rows_each(count)
        if rows == 1:
            return None
        sends = self.values.cpu() != 0
        by_batch = torch.equal(gets_gradient.reshape(rows, terms).any(0), sends)
        by_term = torch.equal(gets_gradient.reshape(terms, rows).any(1), sends)
        if by_batch == by_term:
            return None
        return [n % terms if by_batch else n // rows for n in range(count)]

    def predictions(self, count: int) -> list[float | None]:
        """Return the loss of each sample with the class that the model predicts; None for each if
        samples have several terms, or no class.
        """
        if self.predicted is None or self.predicted.numel() != count:
            return [None] * count
        found: list[float | None] = self.predicted.double().tolist()
        return found

    def means(self, count: int) -> RowLosses | None:
        """Return the mean loss of each sample; None if unknown."""
        found = self.of_samples(count)
        if found is None:
            return None
        values = torch.tensor(found, dtype=torch.float64, device="cpu")
        return RowLosses(values, torch.ones_like(values, dtype=torch.bool), None)

    def are_tokens(self, count: int, length: int) -> bool:
        """Return True if the terms are those of tokens; see ``tokens``."""
        target = self.target
        if target is None or target.is_floating_point() or target.numel() != self.values.numel():
            return False
        return self.values.numel() in (count * length, count * (length - 1))

    def tokens(self, count: int, length: int) -> list[SpikeToken | None]:
        """Return the token with the largest loss of each sample; None for each if the terms are no
        tokens.

        Args:
            count: the number of samples.
            length: the number of tokens of each sample in the input; a target may lack the first
                one.
        """
        if not self.are_tokens(count, length):
            return [None] * count
        assert self.target is not None
        found = zip(
            self.values.reshape(count, -1).double(),
            self.counts.reshape(count, -1),
            self.target.reshape(count, -1),
            strict=True,
        )
        return [_worst_token(*one) for one in found]


def _worst_token(
    losses: torch.Tensor, counts: torch.Tensor, targets: torch.Tensor
) -> SpikeToken | None:
    """Return the token with the largest loss among the tokens that count."""
    known = losses[counts & losses.isfinite()].sort().values
    if not len(known):
        return None
    place = int(losses.masked_fill(~counts | ~losses.isfinite(), -math.inf).argmax())
    # As the median of all numbers: of an even number, the mean of the middle two.
    middle = float((known[(len(known) - 1) // 2] + known[len(known) // 2]) / 2)
    median = middle if len(known) > 1 else None
    return SpikeToken(place, float(losses[place]), int(targets[place]), median)


def loss_factor(roots: Sequence[torch.Tensor]) -> float | None:
    """Return the constant that the script multiplies a loss by, such as a loss scale; None if
    unknown."""
    node = roots[0].grad_fn if len(roots) == 1 and roots[0].numel() == 1 else None
    if node is None:
        return None
    found = 1.0
    for _ in range(_MOST):
        factor, inner = constant_factor(node)
        if inner is None:
            break
        found, node = found * factor, inner
    return abs(found)


def row_losses(roots: Sequence[torch.Tensor]) -> RowLosses | None:
    """Return the terms of the loss that a backward starts from; None if they are unknown.

    Of a sum of several loss functions, as of classes and boxes, a term is the weighted sum of a
    row's losses.
    """
    root = roots[0] if len(roots) == 1 else None
    if root is None or root.numel() != 1 or root.grad_fn is None:
        return None
    found = []
    stack, seen = [root.grad_fn], {root.grad_fn}
    while stack and len(seen) < _MOST:
        node = stack.pop()
        name = kind(node)
        following = [one for one, _ in node.next_functions if one is not None]
        if name in _REDUCTIONS:
            found += [one for one in following if kind(one) in _KNOWN and not _is_penalty(one)]
            stack += [one for one in following if kind(one) in _REDUCTIONS and one not in seen]
            seen.update(following)
        elif name in _LOSSES:
            found.append(node)
        elif name in _SCALAR and shape_of(node) == ():
            stack += [one for one in following if one not in seen]
            seen.update(following)
    if not found[1:]:
        return _terms(found[0]) if found else None
    if stack:
        return None  # it has too many parts
    with torch.no_grad():
        return _sum_of(root, found)


def _is_penalty(node: Node) -> bool:
    """Return True for an operation on a parameter, as in a weight decay by hand."""
    leaf = node.next_functions[0][0] if node.next_functions else None
    return isinstance(leaf, LEAF) and isinstance(leaf.variable, nn.Parameter)


def _sum_of(root: torch.Tensor, nodes: Sequence[Node]) -> RowLosses | None:
    """Return the loss of each row, summed over several loss functions; their mean is the loss,
    without a constant that multiplies all of it.

    None if the factor of one is unknown, or if their rows differ.
    """
    assert root.grad_fn is not None
    scale = loss_factor([root]) or 1.0
    parts = []
    for factor, term in weighted_terms(root.grad_fn):
        factor, node = element(factor / scale, term)
        if node not in nodes:
            continue
        found = _terms(node)
        is_nll = kind(node).startswith("NllLoss")
        if found is None or (is_nll and getattr(node, "_saved_weight", None) is not None):
            return None
        if int(getattr(node, "_saved_reduction", 0)) == _MEAN:
            # The loss of an ignored term is 0.
            factor /= max(int(found.counts.sum()) if is_nll else found.counts.numel(), 1)
        parts.append((factor, found.values))
    rows = min((len(one) for _, one in parts), default=0)
    if len(parts) != len(nodes) or rows < 2 or any(len(one) % rows for _, one in parts):
        return None
    first, *others = (rows * factor * one.double().view(rows, -1).sum(1) for factor, one in parts)
    values = sum(others, first)
    return RowLosses(values, torch.ones_like(values, dtype=torch.bool), None)


def _terms(node: Node) -> RowLosses | None:
    kept, name = saved(node), kind(node)
    values = kept.get("self", kept.get("result"))
    if values is None:
        return None
    with torch.no_grad():
        if name in _TERMS:
            terms = _TERMS[name](node, values)
            return RowLosses(
                terms.flatten(), torch.ones_like(terms, dtype=torch.bool).flatten(), None
            )
        target = kept.get("target")
        if target is None:
            return None
        terms = _LOSSES[name](node, kept)
        counts = torch.ones_like(terms, dtype=torch.bool)
        predicted = None
        if name.startswith("NllLoss"):
            counts = target != signed(int(getattr(node, "_saved_ignore_index", -100)))
            # A class weight would compare losses of different scales.
            if values.dim() == 2 and kept.get("weight") is None:
                predicted = -values.detach().amax(1)
        return RowLosses(terms.flatten(), counts.flatten(), target.detach(), predicted)


def _clamped(node: Node, values: torch.Tensor) -> torch.Tensor:
    low, high = getattr(node, "_saved_min", None), getattr(node, "_saved_max", None)
    return values if low is None and high is None else values.clamp(low, high)


def _softplus(node: Node, values: torch.Tensor) -> torch.Tensor:
    beta, threshold = (float(getattr(node, f"_saved_{name}")) for name in ("beta", "threshold"))
    return F.softplus(values, beta, threshold)


_Terms = Callable[[Node, dict[str, torch.Tensor]], torch.Tensor]


def _nll(node: Node, kept: dict[str, torch.Tensor]) -> torch.Tensor:
    ignored = signed(int(getattr(node, "_saved_ignore_index", -100)))
    return F.nll_loss(
        kept["self"], kept["target"], kept.get("weight"), ignore_index=ignored, reduction="none"
    )


def _of_tensors(function: Callable[..., torch.Tensor], *names: str) -> _Terms:
    def terms(node: Node, kept: dict[str, torch.Tensor]) -> torch.Tensor:
        given = {name: kept[name] for name in names if name in kept}
        return function(kept["self"], kept["target"], reduction="none", **given)

    return terms


def _of_numbers(function: Callable[..., torch.Tensor], *names: str) -> _Terms:
    def terms(node: Node, kept: dict[str, torch.Tensor]) -> torch.Tensor:
        given = {name: getattr(node, f"_saved_{name}") for name in names}
        return function(kept["self"], kept["target"], reduction="none", **given)

    return terms


#: PyTorch's loss functions whose nodes keep their inputs, by the name without version.
_LOSSES: dict[str, _Terms] = {
    "NllLossBackward": _nll,
    "NllLoss2DBackward": _nll,
    "MseLossBackward": _of_numbers(F.mse_loss),
    "SmoothL1LossBackward": _of_numbers(F.smooth_l1_loss, "beta"),
    "HuberLossBackward": _of_numbers(F.huber_loss, "delta"),
    "BinaryCrossEntropyBackward": _of_tensors(F.binary_cross_entropy, "weight"),
    "BinaryCrossEntropyWithLogitsBackward": _of_tensors(
        F.binary_cross_entropy_with_logits, "weight", "pos_weight"
    ),
}
#: Terms of hand-written losses that a mean or a sum reduces: a distance as in ``l1_loss``, a hinge
#: as in a triplet loss, a softplus or a log-sigmoid as in a pairwise loss.
_TERMS: dict[str, Callable[[Node, torch.Tensor], torch.Tensor]] = {
    "PowBackward": lambda node, values: values.pow(float(getattr(node, "_saved_exponent", 2))),
    "AbsBackward": lambda _, values: values.abs(),
    "ReluBackward": lambda _, values: values,  # its result
    "ClampMinBackward": _clamped,
    "ClampBackward": _clamped,
    "SoftplusBackward": _softplus,
    "LogSigmoidBackward": lambda _, values: -F.logsigmoid(values),
}
_KNOWN = _TERMS.keys() | _LOSSES.keys()
