"""Compares the two terms of a variational autoencoder's loss: divergence and reconstruction
error."""

from __future__ import annotations

import math

from torch.autograd.graph import Node

from gradscope.training.loop.loss_walk import BINARY, DIFFERENCES, MEAN, kind, saved
from gradscope.training.loop.weighted_terms import constant_factor, count_of, weighted_terms

#: The factor of the divergence of a Gaussian from the standard one.
_HALF = 0.5
#: So many operations make the divergence of one element.
_MOST = 12
_SUMS = ("SumBackward", "MeanBackward")


def posterior(root: Node) -> tuple[Node, tuple[float, ...]] | None:
    """Return the divergence of a loss with three figures: its weight relative to the error's sum;
    the root mean square of the means; the largest distance of the variances from 1. None if the
    loss does not have both terms. A weight of 1 is the evidence lower bound for an output with unit
    variance, also if both are divided by a number.
    """
    error, divergence = 0.0, None
    for factor, term in weighted_terms(root):
        if kind(term) in DIFFERENCES | BINARY:
            mean = getattr(term, "_saved_reduction", None) == MEAN
            kept = saved(term).get("self")
            count = 1 if not mean else 0 if kept is None else kept.numel()
            error = max(error, abs(factor) / count if count else 0.0)
        elif kind(term) in _SUMS:
            factor, inner = element(factor, term)
            if kind(inner) in ("PowBackward", "AbsBackward"):
                error = max(error, abs(factor))
            elif divergence is None and (found := _gaussian(inner)) is not None:
                divergence = term, abs(factor), *found
    if divergence is None or not error:
        return None
    node, weight, mean_size, spread = divergence
    return node, (weight / _HALF / error, mean_size, spread)


def element(factor: float, node: Node) -> tuple[float, Node]:
    """Return the operand of a sum or a mean, and the factor of each element."""
    while True:
        inner = node.next_functions[0][0] if node.next_functions else None  # a leaf has none
        if kind(node) in _SUMS and inner is not None:
            if kind(node) == "MeanBackward":
                factor *= max(count_of(node), 1) / max(count_of(inner), 1)
        else:
            constant, inner = constant_factor(node)
            if inner is None:
                return factor, node
            factor *= constant
        node = inner


def _gaussian(node: Node) -> tuple[float, float] | None:
    """Return the root mean square of the means, and the largest distance of the variances from 1,
    if a sum is the divergence of Gaussians; else None."""
    means = variances = None
    stack, seen = [node] if kind(node) in ("AddBackward", "SubBackward") else [], 0
    while stack and seen < _MOST:
        one, seen = stack.pop(), seen + 1
        name = kind(one)
        if name == "PowBackward" and getattr(one, "_saved_exponent", None) == 2:
            means = saved(one).get("self")
        elif name == "ExpBackward":
            variances = saved(one).get("result")
        elif name in ("AddBackward", "SubBackward", "NegBackward", "RsubBackward"):
            stack += [inner for inner, _ in one.next_functions if inner is not None]
        elif name == "MulBackward":
            kept = saved(one)
            first, second = kept.get("self"), kept.get("other")
            if first is not None and second is not None and first.data_ptr() == second.data_ptr():
                means = first
    if means is None or variances is None or means.shape != variances.shape:
        return None
    size = math.sqrt(float(means.detach().double().square().mean()))
    return size, float((variances.detach().double() - 1).abs().max())
