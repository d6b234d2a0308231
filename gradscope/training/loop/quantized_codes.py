"""Checks whether the error's gradient passes a quantizer between an encoder and a decoder."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch.autograd.graph import Node

from gradscope.training.loop.loss_walk import DIFFERENCES, kind, operations, saved

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
