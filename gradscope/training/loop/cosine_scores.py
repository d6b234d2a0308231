"""Scores of a classification that are products of normalized rows.

Cosines times a constant have a bound; rows normalized along the batch give no cosines.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.autograd.graph import Node

from gradscope.training.loop.loss_walk import (
    CLASSES,
    SOFTMAX,
    kind,
    operations,
    saved,
    shape_of,
    signed,
)
from gradscope.training.loop.weighted_terms import constant_factor

#: How far the norm of a row may be from 1.
_NEAR = 1e-3
#: Operations that exchange two axes, and others between a normalization and a product.
_TURNS = frozenset({"TBackward", "TransposeBackward", "PermuteBackward"})
_BETWEEN = _TURNS | {"CatBackward", "CloneBackward", "ToCopyBackward"}
#: Operations between the norms and the division by them.
_BESIDE = frozenset({"ExpandBackward", "ClampMinBackward", "AddBackward", "MaximumBackward"})


@dataclass(frozen=True, slots=True)
class ScoreProduct:
    """A matrix product that gives the scores of a classification.

    Attributes:
        node: the product.
        place: the node that multiplies it by a constant, else the loss.
        scale: the size of that constant.
        classes: the number of classes.
    """

    node: Node
    place: Node
    scale: float
    classes: int


def score_products(root: Node) -> Iterator[ScoreProduct]:
    """Yield the products that give the scores of the classifications in a loss."""
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
        if node is not None and kind(node) == "MmBackward" and shape and len(shape) == 2:
            yield ScoreProduct(node, place, abs(scale), shape[1])


def norm_along_batch(product: Node) -> tuple[Node, tuple[int, ...]] | None:
    """Return the normalization of a product's rows, and their shape, if both factors are normalized
    along the batch and not along their features."""
    (rows, _), (columns, _) = product.next_functions
    one, other = _norm_axis(rows), _norm_axis(columns)
    # The product sums over axis 1 of the rows, and over axis 0 of the columns.
    shape = None if rows is None else shape_of(rows)
    if one and other and shape and (one[1], other[1]) == (0, 1):
        return one[0], shape
    return None


def _norm_axis(node: Node | None) -> tuple[Node, int] | None:
    """Return the division of a factor with two axes by its norms, and the axis of these norms in
    the product; None for any other operation."""
    turned = False
    while node is not None and kind(node) in _BETWEEN:
        turned ^= kind(node) in _TURNS
        node = node.next_functions[0][0]
    shape = None if node is None else shape_of(node)
    if node is None or kind(node) != "DivBackward" or len(shape or ()) != 2 or 1 in (shape or ()):
        return None
    norm = node.next_functions[1][0]
    while norm is not None and kind(norm) in _BESIDE:
        norm = norm.next_functions[0][0]
    dims = getattr(norm, "_saved_dim", None) if norm is not None else None
    if norm is None or kind(norm) != "LinalgVectorNormBackward" or not dims or len(dims) != 1:
        return None
    return node, (signed(dims[0]) % 2) ^ turned


def is_cosine(product: Node) -> bool:
    """Return True if the rows of the one factor and the columns of the other have the norm 1."""
    kept = saved(product)
    rows, columns = kept.get("self"), kept.get("mat2")
    if rows is None or columns is None or rows.shape[1] < 2:
        return False
    return _unit(rows, 1) and _unit(columns, 0)


def _unit(values: torch.Tensor, dim: int) -> bool:
    norms = torch.linalg.vector_norm(values.detach().float(), dim=dim)
    return bool(((norms - 1).abs() < _NEAR).all())
