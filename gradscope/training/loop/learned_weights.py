"""Finds trained weights of a loss's terms that can fall to zero."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.autograd.graph import Node

from gradscope.capture.graph import LEAF
from gradscope.capture.nodes import MOVES
from gradscope.training.loop.loss_walk import kind, saved
from gradscope.training.loop.weighted_terms import constant_factor, count_of, weighted_terms

#: The most operations between a weight and its parameter, and in the rest of the loss.
_NEAR, _FAR = 8, 64
#: More numbers are not weights of terms.
_FEW = 64
#: What makes a positive weight of a parameter, without a bound that it cannot cross.
_POSITIVE = frozenset(
    {"ExpBackward", "ReciprocalBackward", "PowBackward", "SoftplusBackward", "SelectBackward"}
)


def learned_weights(root: Node) -> Iterator[tuple[str, Node, float]]:
    """Yield each product of a term of the loss and a positive weight that a parameter alone gives:
    the operation that makes the weight, the product, and the weight.

    A parameter does not count if the loss depends on it in another way, for example by a logarithm
    that keeps the weight from 0.
    """
    products: list[tuple[Node, torch.Tensor, torch.Tensor, str]] = []
    others: list[Node] = []
    for factor, term in weighted_terms(root):
        found = _product(term) if factor > 0 else None
        if found is None:
            others.append(term)
        else:
            products.append(found)
    held = {id(leaf) for term in others for leaf in _leaves(term)} if products else set()
    for node, weight, leaf, how in products:
        if id(leaf) not in held and weight.numel() and bool((weight > 0).all()):
            yield how, node, float(weight.detach().double().mean())


def _product(term: Node) -> tuple[Node, torch.Tensor, torch.Tensor, str] | None:
    """Return the product, its weight, the parameter, and the first operation on the parameter."""
    node: Node | None = term
    if kind(term) in ("SumBackward", "MeanBackward"):
        node = term.next_functions[0][0]
    if node is None or count_of(node) > _FEW or kind(node) not in ("MulBackward", "DivBackward"):
        return None
    edges = [one for one, _ in node.next_functions]
    if len(edges) != 2 or None in edges:
        return None
    kept = saved(node)
    for own, other, name in ((0, 1, "self"), (1, 0, "other")):
        if kind(node) == "DivBackward" and own == 0:
            continue
        made, rest = edges[own], edges[other]
        found = None if made is None else _from_leaf(made)
        if found is None or rest is None or _from_leaf(rest) is not None or name not in kept:
            continue
        weight = kept[name] if kind(node) == "MulBackward" else kept[name].reciprocal()
        return node, weight, *found
    return None


def _from_leaf(node: Node) -> tuple[torch.Tensor, str] | None:
    """Return the small parameter that alone makes a positive number, and the operation that makes
    it."""
    name = ""
    for _ in range(_NEAR):
        if isinstance(node, LEAF):
            leaf = node.variable
            return (leaf, name) if name and leaf.numel() <= _FEW else None
        _, inner = constant_factor(node)
        if inner is None:
            if kind(node) not in _POSITIVE | MOVES:
                return None
            inner = node.next_functions[0][0]
        if kind(node) in ("ExpBackward", "ReciprocalBackward", "PowBackward", "SoftplusBackward"):
            name = kind(node).removesuffix("Backward").lower()
        if inner is None:
            return None
        node = inner
    return None


def _leaves(term: Node) -> Iterator[torch.Tensor]:
    """Yield the parameters that a term depends on, within a few operations."""
    stack, seen = [term], {term}
    while stack and len(seen) < _FAR:
        node = stack.pop()
        if isinstance(node, LEAF):
            yield node.variable
        for one, _ in node.next_functions:
            if one is not None and one not in seen:
                seen.add(one)
                stack.append(one)
