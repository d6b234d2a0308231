"""Reads the operations between the models and a loss from its graph.

The walk goes from the loss towards the models, through typical operations of losses, and stops at
layers. So it takes microseconds, independent of the model's size.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import torch
from torch.autograd.graph import Node
from torch.utils._python_dispatch import _disable_current_modes

from gradscope.capture.graph import LEAF, saved_tensors
from gradscope.capture.nodes import MOVES, stack_of
from gradscope.capture.shards import is_spread
from gradscope.explain.shared.frames import user_line

Shape = tuple[int, ...]

#: Number of operations to visit: a longer loss is a loop over a sequence.
_MOST = 256
_DIGITS = "0123456789"
#: PyTorch's number of ``reduction="mean"``.
MEAN = 1
#: Nodes of PyTorch's loss functions, without version.
CLASSES = frozenset({"NllLossBackward", "NllLoss2DBackward"})
BINARY = frozenset({"BinaryCrossEntropyBackward", "BinaryCrossEntropyWithLogitsBackward"})
DIFFERENCES = frozenset({"MseLossBackward", "SmoothL1LossBackward", "HuberLossBackward"})
SOFTMAX = frozenset({"SoftmaxBackward", "LogSoftmaxBackward"})
#: Operations with two operands, each of any shape.
ARITHMETIC = frozenset({"SubBackward", "AddBackward", "MulBackward", "DivBackward"})
_MADE_OF = (
    CLASSES
    | BINARY
    | DIFFERENCES
    | SOFTMAX
    | ARITHMETIC
    | MOVES
    | frozenset(
        {
            *("MeanBackward", "SumBackward", "NegBackward", "PowBackward", "AbsBackward"),
            *("SqrtBackward", "LogBackward", "Log1PBackward", "ClampBackward", "ClampMinBackward"),
            *("ClampMaxBackward", "SigmoidBackward", "LogSigmoidBackward", "KlDivBackward"),
            *("StackBackward", "CatBackward", "MaskedFillBackward", "RsubBackward"),
            *("NanToNumBackward", "CtcLossBackward"),
        }
    )
)
#: Operations that choose between the pieces of a loss. Models use them too.
PIECES = frozenset({"WhereBackward", "MinimumBackward", "MaximumBackward"})
_SUMS = frozenset({"AddBackward", "SubBackward", "NegBackward", "MeanBackward", "SumBackward"})
#: Operations allowed between a loss and its negative.
_SIGNED = frozenset({"NegBackward", "MeanBackward", "SumBackward"})
_FACTORS = frozenset({"MulBackward", "DivBackward"})
#: Nodes of layers with a weight, and the number of the edge to the weight.
LAYERS = {"AddmmBackward": 2, "MmBackward": 1, "ConvolutionBackward": 1}


def kind(node: Node) -> str:
    """Return the name of a node's class without the version."""
    return type(node).__name__.rstrip(_DIGITS)


def shape_of(node: Node, output: int = 0) -> Shape | None:
    """Return the shape of a node's output; None if it is not a plain tensor."""
    made = node._input_metadata[output : output + 1]
    return None if not made or made[0].is_nested_tensor else tuple(made[0].shape)


def line_of(node: Node) -> tuple[str, int] | None:
    """Return the user's file and line that made a node, if PyTorch keeps stacks."""
    line = user_line(stack_of(node))
    return None if line is None else line[:2]


def operations(root: Node, also: Collection[str] = ()) -> Iterator[Node]:
    """Yield the operations of a loss, each once, the loss's own first.

    Args:
        also: the names of further operations to go through.
    """
    stack, seen = [root], {root}
    while stack and len(seen) < _MOST:
        node = stack.pop()
        name = kind(node)
        if name not in _MADE_OF and name not in also and not _is_ctc(node):
            continue
        yield node
        if name in ("SoftmaxBackward", "CtcLossBackward"):
            continue
        following = [one for one, _ in node.next_functions if one is not None]
        # A sum with weights that a model computes, as in attention, is part of the model.
        if name in ("MulBackward", "DivBackward") and shape_of(node) and len(set(following)) > 1:
            continue
        for one in reversed(following):
            if one not in seen and not isinstance(one, LEAF):
                seen.add(one)
                stack.append(one)


def _is_ctc(node: Node) -> bool:
    """Return True for the operation that replaces an infinite ctc_loss by zero."""
    edges = node.next_functions if kind(node) == "WhereBackward" else ()
    return any(one is not None and kind(one) == "CtcLossBackward" for one, _ in edges)


def terms(root: Node) -> Iterator[Node]:
    """Yield the terms of a loss's sums, down to a square, a distance or a product."""
    stack, seen = [root], {root}
    while stack and len(seen) < _MOST:
        node = stack.pop()
        following = [one for one, _ in node.next_functions if one is not None]
        if kind(node) in _SUMS or (kind(node) in _FACTORS and len(following) == 1):
            yield node
            stack += [one for one in following if one not in seen and not isinstance(one, LEAF)]
            seen.update(following)


def negated_loss(root: Node) -> Node | None:
    """Return the PyTorch loss whose negative a loss is; None if it is anything else.

    Means and positive or unknown constant factors may be between the two.
    """
    node: Node | None = root
    negative = False
    while node is not None:
        name = kind(node)
        if name in CLASSES | BINARY | DIFFERENCES:
            return node if negative else None
        following = [one for one, _ in node.next_functions if one is not None]
        if len(following) != 1 or name not in _SIGNED:
            return None
        negative ^= name == "NegBackward"
        node = following[0]
    return None


def has_logsumexp(root: Node) -> bool:
    """Return True if a loss contains the logarithm of a sum of exponentials: a softmax by hand."""
    return any(
        following is not None and kind(following) == "LogsumexpBackward"
        for node in operations(root)
        for following, _ in node.next_functions
    )


def is_linked_beside(root: Node, cut: Collection[Node]) -> bool:
    """Return True if the loss reaches a model or a parameter by a path without these nodes."""
    stack, seen = [root], {root, *cut}
    while stack and len(seen) < _MOST:
        node = stack.pop()
        if node in cut:
            continue
        if kind(node) not in _MADE_OF:
            return True
        for one, _ in node.next_functions:
            if one is not None and one not in seen:
                seen.add(one)
                stack.append(one)
    return bool(stack)


def saved(node: Node) -> dict[str, torch.Tensor]:
    """Return the tensors that a node keeps for backward; none if reading has a side effect.

    Sharded tensors are left out, because all processes would have to read them.
    """
    try:
        return {name: one for name, one in saved_tensors(node) if not is_spread(one)}
    except RuntimeError:
        return {}


def number_of(tensor: torch.Tensor | None) -> float | None:
    """Return the value of a tensor with one element; None for any other.

    The script's own dispatch modes are off during the read, because PyTorch would pass them a
    Python number for a constant, which operations refuse.
    """
    if tensor is None or tensor.numel() != 1:
        return None
    with _disable_current_modes():
        return float(tensor)


def dim_of(node: Node) -> int | None:
    """Return the axis of a softmax, from 0."""
    dim, shape = getattr(node, "_saved_dim", None), shape_of(node)
    return None if dim is None or not shape else signed(dim) % len(shape)


def signed(number: int) -> int:
    """Return a number that a node keeps, with its sign: PyTorch shows a negative one as
    unsigned."""
    return number - (1 << 64) if number >= 1 << 63 else number


def scores_of(loss: Node) -> Node | None:
    """Return the layer whose output is the scores of a classification loss; None if it is another
    operation."""
    node: Node | None = loss
    while node is not None:
        name = kind(node)
        if name in LAYERS:
            return node
        through = name in MOVES or name in _MADE_OF - ARITHMETIC - {"StackBackward", "CatBackward"}
        if not through and not (name == "AddBackward" and adds_bias(node)):
            return None
        node = next((one for one, _ in node.next_functions[:1]), None)
    return None


def weight_of(layer: Node) -> torch.Tensor | None:
    """Return the weight of the layer that gives scores; None if it is not a parameter, or requires
    no gradient."""
    position = LAYERS[kind(layer)]
    edges = layer.next_functions
    node = edges[position][0] if position < len(edges) else None
    while node is not None and kind(node) in MOVES:
        node = node.next_functions[0][0]
    return node.variable if isinstance(node, LEAF) else None


def adds_bias(node: Node) -> bool:
    """Return True for the sum of a layer's output and its bias."""
    edges = node.next_functions
    return len(edges) > 1 and isinstance(edges[1][0], LEAF)
