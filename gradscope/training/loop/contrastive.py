"""Checks contrastive losses: normalized scores, the positive sample, the order of a triplet."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.autograd.graph import Node

from gradscope.explain.shared.frames import is_at, tree_of
from gradscope.records.loop_figures import LoopFact
from gradscope.training.loop.loss_walk import (
    CLASSES,
    SOFTMAX,
    is_linked_beside,
    kind,
    operations,
    saved,
    shape_of,
    signed,
)
from gradscope.training.loop.script_lines import ScriptLine
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


#: Fewer rows could be symmetric by chance.
_FEWEST = 4
#: How far scores may be from symmetric, and how much they must differ.
_SYMMETRIC, _SPREAD = 1e-4, 1e-2


def own_positive(root: Node) -> tuple[Node, tuple[float, ...]] | None:
    """Return the classification loss, and its number of rows, if it is all of a loss, the scores
    are a symmetric matrix of similarities, and the target of each row is its diagonal element."""
    losses = [one for one in operations(root) if kind(one) in CLASSES]
    rows = [_rows(one) for one in losses]
    if not losses or not all(rows) or is_linked_beside(root, losses):
        return None
    return losses[0], (float(rows[0]),)


def _rows(loss: Node) -> int:
    """Return the number of rows of such scores; 0 for other scores."""
    softmax, target = loss.next_functions[0][0], saved(loss).get("target")
    if softmax is None or kind(softmax) not in SOFTMAX or target is None:
        return 0
    count = target.numel()
    scores = saved(softmax).get("result")
    if scores is None or count < _FEWEST or scores.shape != (count, count):
        return 0
    if not torch.equal(target, torch.arange(count, device=target.device)):
        return 0
    # Log-probabilities are the scores without one number per row, so symmetry is tested up to that.
    scores = scores.detach().double()
    skew = scores - scores.T
    skew = skew - skew[:, :1] + skew[:, 0]
    symmetric = bool(skew.abs().max() < _SYMMETRIC * max(1.0, float(scores.abs().max())))
    return count if symmetric and float(scores.max() - scores.min()) > _SPREAD else 0


#: The role of a variable, by its name.
_ROLES = {
    "anchor": re.compile(r"(?<![a-z])(a|anc|anchors?)(?![a-z])"),
    "positive": re.compile(r"(?<![a-z])(p|pos|positives?)(?![a-z])"),
    "negative": re.compile(r"(?<![a-z])(n|neg|negatives?)(?![a-z])"),
}


def uncounted_pairs(node: Node) -> int:
    """Return the number of pairs without a loss, if an operation is the sum of a
    ``cosine_embedding_loss``; they have targets other than 1 and -1.

    It is the sum of two choices from one similarity: of ``1 - cos`` and of ``clamp(cos - margin)``.
    """
    sides = [one for one, _ in node.next_functions if one is not None]
    if kind(node) != "AddBackward" or [kind(one) for one in sides] != ["WhereBackward"] * 2:
        return 0
    chosen = [[n for n, _ in one.next_functions if n is not None] for one in sides]
    if [[kind(one) for one in few] for few in chosen] != [["SubBackward"], ["ClampMinBackward"]]:
        return 0
    inner = chosen[1][0].next_functions[0][0]
    similar = chosen[0][0].next_functions[1][0]
    if inner is None or similar is None or inner.next_functions[0][0] is not similar:
        return 0
    first, second = (getattr(one, "_saved_condition", None) for one in sides)
    if not isinstance(first, torch.Tensor) or not isinstance(second, torch.Tensor):
        return 0
    if bool(first.any()) and bool(second.any()):
        return 0  # the targets are 1 and -1, and a third may leave out padding
    return int((~(first | second)).sum())


class Triplets:
    """Compares the names of a triplet loss's arguments with the order of its parameters."""

    def __init__(self) -> None:
        # By line: the names in the order that they are given, if that is wrong; and how often.
        self._lines: dict[ScriptLine, tuple[tuple[str, ...], int]] = {}

    def compared(self, line: ScriptLine | None) -> None:
        """Note a line of the script that computes a triplet loss."""
        if line is not None:
            known = self._lines.get(line)
            names, count = known or (_exchanged(line), 0)
            self._lines[line] = names, count + 1

    def facts(self) -> Iterator[LoopFact]:
        """Yield a fact for each line whose arguments are exchanged."""
        for line, (names, count) in self._lines.items():
            if names:
                yield LoopFact("exchanged-triplet", count=count, words=names, location=str(line))


def _exchanged(line: ScriptLine) -> tuple[str, ...]:
    """Return the three arguments of a call on this line, if they have the names of a triplet
    and the negative is not the last; else ()."""
    tree = tree_of(line.file)
    for call in ast.walk(tree) if tree is not None else ():
        if not isinstance(call, ast.Call) or not is_at(call, line.line) or len(call.args) < 3:
            continue
        roles = [_role(one) for one in call.args[:3]]
        if set(roles) == _ROLES.keys() and roles[2] != "negative":
            return tuple(ast.unparse(one) for one in call.args[:3])
    return ()


def _role(argument: ast.expr) -> str | None:
    """Return the role that the names in an expression have; None without one, or with several."""
    names = [getattr(one, "id", None) or getattr(one, "attr", "") for one in ast.walk(argument)]
    found = {
        role
        for role, pattern in _ROLES.items()
        if any(pattern.search(name.lower()) for name in names if isinstance(name, str))
    }
    return found.pop() if len(found) == 1 else None
