"""Overlaps with a target that a loss should make larger: intersection over union, Dice."""

from __future__ import annotations

from torch.autograd.graph import Node

from gradscope.capture.nodes import MOVES
from gradscope.training.loop.loss_walk import kind
from gradscope.training.loop.posteriors import element
from gradscope.training.loop.weighted_terms import weighted_terms


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
    given = _factor(shared)
    if len(below) == 1 and sizes and given is not None and _summed(sizes[0]) is given:
        return "Dice"
    return None


def _factor(node: Node) -> Node | None:
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
