"""Detection of scores that are a product of two activations, by the nodes that made them."""

from __future__ import annotations

from torch import Tensor
from torch.autograd.graph import Node

#: Steps from a product of q and k to a softmax: scale, bias, mask, softcap, sink, dtype, shape.
_BETWEEN = {
    *("Mul", "Div", "Add", "Sub", "Neg", "Tanh", "Clamp", "ClampMin", "ClampMax"),
    *("MaskedFill", "Where", "IndexPut", "Cat", "Slice", "Index", "Gather"),
    *("View", "UnsafeView", "ReshapeAlias", "Expand", "Transpose", "Permute", "Unsqueeze"),
    *("Squeeze", "ToCopy", "Clone", "Alias", "CopySlices", "Pad", "ConstantPadNd"),
}
#: Steps that only move or scale an operand.
_MOVES = {
    *("T", "Transpose", "Permute", "View", "UnsafeView", "ReshapeAlias", "Expand", "Unsqueeze"),
    *("Squeeze", "ToCopy", "Clone", "Alias"),
}
_PRODUCTS = {"Bmm": slice(0, 2), "Baddbmm": slice(1, 3), "Mm": slice(0, 2)}
#: Number of nodes to visit.
_MOST = 96


def is_product(scores: Tensor) -> bool:
    """Return True for scores of attention: a matrix product of two tensors, neither a parameter.

    Without a graph, as under ``no_grad``, the answer is no.
    """
    waiting = [scores.grad_fn]
    seen: set[Node] = set()  # the nodes, not their ids: Python's object of a node may come and go
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
    """``Bmm`` of a ``BmmBackward0``."""
    return type(node).__name__.rstrip("0123456789").removesuffix("Backward")


def _is_parameter(node: Node | None) -> bool:
    """Return True if an operand is a leaf: moved and cast, but not computed."""
    while node is not None and operation(node) in _MOVES:
        node = node.next_functions[0][0] if node.next_functions else None
    return node is not None and operation(node) == "AccumulateGrad"
