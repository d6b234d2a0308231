"""Finds classification scores that are cosines times a constant, and so have a bound."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.autograd.graph import Node

from gradscope.training.loop.loss_walk import (
    CLASSES,
    SOFTMAX,
    kind,
    operations,
    saved,
    shape_of,
)
from gradscope.training.loop.weighted_terms import constant_factor

#: How far the norm of a row may be from 1.
_NEAR = 1e-3


def cosine_scores(root: Node) -> Iterator[tuple[Node, float, int]]:
    """Yield for each classification by cosines: the node that multiplies them, else the loss; the
    factor; and the number of classes."""
    for loss in operations(root):
        if kind(loss) not in CLASSES:
            continue
        node, scale = loss.next_functions[0][0], 1.0
        if node is None or kind(node) not in SOFTMAX:
            continue
        shape, place = shape_of(node), loss
        node = node.next_functions[0][0]
        while node is not None:
            if kind(node) == "MaskedFillBackward":
                node = node.next_functions[0][0]
                continue
            constant, inner = constant_factor(node)
            if inner is None:
                break
            place = node if kind(node) in ("MulBackward", "DivBackward") else place
            scale, node = scale * constant, inner
        if node is not None and shape and len(shape) == 2 and _is_cosine(node):
            yield place, abs(scale), shape[1]


def _is_cosine(product: Node) -> bool:
    """Return True if the rows of the one factor and the columns of the other have the norm 1."""
    if kind(product) != "MmBackward":
        return False
    kept = saved(product)
    rows, columns = kept.get("self"), kept.get("mat2")
    if rows is None or columns is None or rows.shape[1] < 2:
        return False
    return _unit(rows, 1) and _unit(columns, 0)


def _unit(values: torch.Tensor, dim: int) -> bool:
    norms = torch.linalg.vector_norm(values.detach().float(), dim=dim)
    return bool(((norms - 1).abs() < _NEAR).all())
