"""Reads the terms of a loss from the graph, each with its factor.

It also finds factors that are mistakes: weights that can fall to zero, overlaps that are minimised.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.autograd.graph import Node

from gradscope.capture.graph import LEAF
from gradscope.capture.nodes import MOVES
from gradscope.training.loop.loss_walk import kind, number_of, saved, shape_of

#: A loss of more terms is a loop over a sequence.
_MOST = 256

#: Operations that add up all elements.
SUMS = ("SumBackward", "MeanBackward")


def weighted_terms(root: Node) -> Iterator[tuple[float, Node]]:
    """Yield the terms of a scalar loss, each with its constant factor.

    Sums, differences and constant factors are split; everything else is a term.
    """
    stack, count = [(1.0, root)], 0
    while stack and count < _MOST:
        factor, node = stack.pop()
        count += 1
        name = kind(node)
        if name in ("AddBackward", "SubBackward"):
            alpha = _number(getattr(node, "_saved_alpha", 1))
            for place, (one, _) in enumerate(node.next_functions):
                if one is not None:
                    sign = alpha * (-1 if name == "SubBackward" else 1) if place else 1.0
                    stack.append((factor * sign, one))
            continue
        constant, inner = constant_factor(node)
        if inner is None:
            yield factor, node
        else:
            stack.append((factor * constant, inner))


def constant_factor(node: Node) -> tuple[float, Node | None]:
    """Return the constant factor of an operation, and the node of its other operand; no node if it
    is another operation, or if the factor is not a single number."""
    name = kind(node)
    edges = [one for one, _ in node.next_functions]
    if name in MOVES or name == "NegBackward":
        return (-1.0 if name == "NegBackward" else 1.0), edges[0]
    if name == "RsubBackward":
        return -1.0, edges[0]
    if name not in ("MulBackward", "DivBackward") or len(edges) != 2:
        return 1.0, None
    if (edges[0] is None) == (edges[1] is None):
        return 1.0, None
    kept = saved(node).get("other" if edges[1] is None else "self")
    if name == "DivBackward" and edges[1] is not None:
        return 1.0, None
    value = number_of(kept)
    if value is None:
        return 1.0, None
    inner = edges[0] if edges[1] is None else edges[1]
    if name == "DivBackward":
        return (1.0 / value, inner) if value else (1.0, None)
    return value, inner


def divisors(root: Node) -> tuple[list[tuple[float, Node]], Node | None]:
    """Yield the constants that divide a loss, the last division first, with the divided node; a
    factor of 1/8 counts as a division by 8."""
    found: list[tuple[float, Node]] = []
    node = root
    while True:
        constant, inner = constant_factor(node)
        if inner is None:
            return found, node
        if kind(node) not in MOVES and 0 < constant < 1:
            found.append((1.0 / constant, node))
        node = inner


def element(factor: float, node: Node) -> tuple[float, Node]:
    """Return the operand of a sum or a mean, and the factor of each element."""
    while True:
        inner = node.next_functions[0][0] if node.next_functions else None  # a leaf has none
        if kind(node) in SUMS and inner is not None:
            if kind(node) == "MeanBackward":
                factor *= max(count_of(node), 1) / max(count_of(inner), 1)
        else:
            constant, inner = constant_factor(node)
            if inner is None:
                return factor, node
            factor *= constant
        node = inner


def count_of(node: Node) -> int:
    """Return the number of elements of a node's output; 0 if unknown."""
    shape = shape_of(node)
    return 0 if shape is None else torch.Size(shape).numel()


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 1.0


#: The most operations between a weight and its parameter, and in the rest of the loss.
_NEAR, _FAR = 8, 64
#: More numbers are not weights of terms.
_FEW = 64
#: Operations that turn a parameter into a positive weight without an upper bound.
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
    if kind(term) in SUMS:
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


def minimised_overlap(root: Node) -> tuple[str, Node] | None:
    """Return the name of an overlap with a constant target, and its term of the loss, if the term
    has a positive sign."""
    for factor, term in weighted_terms(root):
        factor, ratio = element(factor, term)
        name = _overlap(ratio) if factor > 0 else None
        if name is not None:
            return name, term  # where the sign is chosen
    return None


def _overlap(ratio: Node) -> str | None:
    """Return the name of an overlap: an intersection over its union, or twice the sum of products
    over the sum of both factors. One side has no gradient."""
    edges = [one for one, _ in ratio.next_functions]
    if kind(ratio) != "DivBackward" or len(edges) != 2 or edges[0] is None or edges[1] is None:
        return None
    above, below = list(weighted_terms(edges[0])), list(weighted_terms(edges[1]))
    if len(above) != 1 or above[0][0] <= 0 or len(below) > 2:
        return None
    ((_, shared),) = above
    sizes = [one for factor, one in below if factor > 0]
    if len(sizes) == 1 and any(factor < 0 and one is shared for factor, one in below):
        return "IoU"
    given = _trained_factor(shared)
    if len(below) == 1 and sizes and given is not None and _summed(sizes[0]) is given:
        return "Dice"
    return None


def _trained_factor(node: Node) -> Node | None:
    """Return the factor with a gradient, in a sum of products with a constant."""
    product = _summed(node)
    if product is None or kind(product) != "MulBackward":
        return None
    edges = [one for one, _ in product.next_functions if one is not None]
    return _moved(edges[0]) if len(edges) == 1 else None


def _summed(node: Node) -> Node | None:
    """Return the tensor that a sum adds up."""
    if kind(node) != "SumBackward":
        return None
    return _moved(node.next_functions[0][0])


def _moved(node: Node | None) -> Node | None:
    while node is not None and kind(node) in MOVES:
        node = node.next_functions[0][0]
    return node
