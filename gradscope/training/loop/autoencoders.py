"""Checks losses of autoencoders: the terms of a variational one, the gradient at a quantizer."""

from __future__ import annotations

import math
from collections.abc import Collection

import torch
from torch.autograd.graph import Node

from gradscope.training.loop.loss_walk import BINARY, DIFFERENCES, MEAN, kind, operations, saved
from gradscope.training.loop.weighted_terms import SUMS, element, weighted_terms

#: The factor of the divergence of a Gaussian from the standard one.
_HALF = 0.5
#: So many operations make the divergence of one element.
_OF_DIVERGENCE = 12


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
        elif kind(term) in SUMS:
            factor, inner = element(factor, term)
            if kind(inner) in ("PowBackward", "AbsBackward"):
                error = max(error, abs(factor))
            elif divergence is None and (found := _gaussian(inner)) is not None:
                divergence = term, abs(factor), *found
    if divergence is None or not error:
        return None
    node, weight, mean_size, spread = divergence
    return node, (weight / _HALF / error, mean_size, spread)


def _gaussian(node: Node) -> tuple[float, float] | None:
    """Return the root mean square of the means, and the largest distance of the variances from 1,
    if a sum is the divergence of Gaussians; else None."""
    means = variances = None
    stack, seen = [node] if kind(node) in ("AddBackward", "SubBackward") else [], 0
    while stack and seen < _OF_DIVERGENCE:
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


#: A larger graph is not walked.
_MOST = 20_000


def cut_encoder(root: Node) -> tuple[Node, tuple[float, ...]] | None:
    """Return the operation that computes an encoder's codes, if only a distance to the codes
    depends on the encoder; else None. The loss must have a pair of such distances between two
    tensors, each with the other tensor detached.
    """
    sides = [side for node in operations(root) if (side := _one_sided(node)) is not None]
    for codes, moving, fixed in sides:
        for encoder, of_encoder, of_codes in sides:
            if encoder is codes or not (_equal(moving, of_codes) and _equal(fixed, of_encoder)):
                continue
            upstream = _upstream([one for one, _ in encoder.next_functions if one is not None], ())
            table = _lookup(codes)
            if upstream is None or table is None:
                continue
            rest = _upstream([root], {codes, encoder})
            if rest is not None and not rest & upstream:
                return table, ()
    return None


def _one_sided(node: Node) -> tuple[Node, torch.Tensor, torch.Tensor] | None:
    """Return both sides of a squared difference, if only the first side requires a gradient."""
    if kind(node) not in DIFFERENCES:
        return None
    kept, edges = saved(node), [one for one, _ in node.next_functions[:2]]
    first, second = kept.get("self"), kept.get("target")
    if first is None or second is None or (edges[0] is None) == (edges[-1] is None):
        return None
    return (node, first, second) if edges[0] is not None else (node, second, first)


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and bool(torch.equal(one.detach(), other.detach()))


def _lookup(codes: Node) -> Node | None:
    """Return the operation that chooses rows of a table for the trained side, by index or by a
    product with ones and zeros."""
    node = next((one for one, _ in codes.next_functions if one is not None), None)
    for _ in range(4):
        if node is None:
            return None
        if kind(node) in ("EmbeddingBackward", "IndexBackward", "IndexSelectBackward"):
            return node
        if kind(node) in ("MmBackward", "AddmmBackward"):
            return node if node.next_functions[0][0] is None else None
        node = node.next_functions[0][0] if node.next_functions else None
    return None


def _upstream(roots: Collection[Node], without: Collection[Node]) -> set[Node] | None:
    """Return some nodes and all upstream of them, by paths without the others; None if there are
    too many."""
    stack, seen = list(roots), {*roots, *without}
    while stack:
        for one, _ in stack.pop().next_functions:
            if one is not None and one not in seen:
                seen.add(one)
                stack.append(one)
        if len(seen) > _MOST:
            return None
    return seen - set(without)
