"""Detects scores that are a product of two activations, by their autograd nodes."""

from __future__ import annotations

from torch import Tensor
from torch.autograd.graph import Node

# : Operations allowed between the product of q and k and the softmax: scale, bias, mask, softcap,
# sink, dtype, shape.
_BETWEEN = {
    *("Mul", "Div", "Add", "Sub", "Neg", "Tanh", "Clamp", "ClampMin", "ClampMax"),
    *("MaskedFill", "Where", "IndexPut", "Cat", "Slice", "Index", "Gather"),
    *("View", "UnsafeView", "ReshapeAlias", "Expand", "Transpose", "Permute", "Unsqueeze"),
    *("Squeeze", "ToCopy", "Clone", "Alias", "CopySlices", "Pad", "ConstantPadNd"),
}
#: Operations that only move or scale an operand.
_MOVES = {
    *("T", "Transpose", "Permute", "View", "UnsafeView", "ReshapeAlias", "Expand", "Unsqueeze"),
    *("Squeeze", "ToCopy", "Clone", "Alias"),
}
_PRODUCTS = {"Bmm": slice(0, 2), "Baddbmm": slice(1, 3), "Mm": slice(0, 2)}
#: Number of nodes to visit.
_MOST = 96


def is_product(scores: Tensor) -> bool:
    """Return True for attention scores: a matrix product of two tensors, neither of them a
    parameter.

    False without a graph, as under ``no_grad``.
    """
    waiting = [scores.grad_fn]
    seen: set[Node] = set()  # the nodes, not their ids: a node's Python object may be recreated
    while waiting and len(seen) < _MOST:
        node = waiting.pop(0)
        if node is None or node in seen:
            continue
        seen.add(node)
        name = operation(node)
        if name in _PRODUCTS:
            operands = node.next_functions[_PRODUCTS[name]]
            if not any(_is_parameter(operand) for operand, _ in operands):
                return True
        elif name in _BETWEEN:
            waiting += [before for before, _ in node.next_functions]
    return False


def operation(node: Node) -> str:
    """Return the operation of a node: ``Bmm`` for ``BmmBackward0``."""
    return type(node).__name__.rstrip("0123456789").removesuffix("Backward")


def _is_parameter(node: Node | None) -> bool:
    """Return True if an operand is a leaf, possibly moved or cast."""
    while node is not None and operation(node) in _MOVES:
        node = node.next_functions[0][0] if node.next_functions else None
    return node is not None and operation(node) == "AccumulateGrad"
