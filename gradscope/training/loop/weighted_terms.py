"""Reads the terms of a loss, each with its factor, from the graph."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.autograd.graph import Node

from gradscope.capture.nodes import MOVES
from gradscope.training.loop.loss_walk import kind, number_of, saved, shape_of

#: A loss of more terms is a loop over a sequence.
_MOST = 256


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


def count_of(node: Node) -> int:
    """Return the number of elements of a node's output; 0 if unknown."""
    shape = shape_of(node)
    return 0 if shape is None else torch.Size(shape).numel()


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 1.0
