"""Values that gradients flow through though they should be constants: a target, an old policy."""

from __future__ import annotations

import torch
from torch.autograd.graph import Node

from gradscope.capture.nodes import MOVES
from gradscope.training.loop.loss_walk import DIFFERENCES, kind, operations, saved, shape_of

_MAXIMA = frozenset({"MaxBackward", "AmaxBackward"})
_DEEP = 24
#: Operations between the ratio of two policies and the loss.
_SURROGATE = frozenset(
    {"NegBackward", "MeanBackward", "SumBackward", "AddBackward", "SubBackward", "MulBackward"}
    | {"DivBackward", "MinimumBackward", "ClampBackward"}
)
_MOST = 64


def bootstrapped(root: Node) -> tuple[Node, tuple[float, ...]] | None:
    """Return a loss's distance between two values with gradients, if one of them is a constant plus
    a multiple of a maximum: ``reward + gamma * q(next).max(1).values``."""
    for node in operations(root):
        if kind(node) not in DIFFERENCES and kind(node) != "SubBackward":
            continue
        sides = [one for one, _ in node.next_functions[:2]]
        if len(sides) == 2 and None not in sides and any(map(_is_target, sides)):
            return node, ()
    return None


def attached_ratio(root: Node) -> tuple[Node, tuple[float, ...]] | None:
    """Return the exponential of a difference that is exactly 0, though both sides have a gradient.
    It is the ratio of a policy to itself, whose gradients cancel."""
    stack, seen = [root], {root}
    while stack and len(seen) < _MOST:
        node = stack.pop()
        following = [one for one, _ in node.next_functions if one is not None]
        if kind(node) == "ExpBackward":
            difference = following[0] if following else None
            sides = [] if difference is None else difference.next_functions
            ratio = saved(node).get("result")
            if difference is None or kind(difference) != "SubBackward" or ratio is None:
                continue
            shapes = [None if one is None else shape_of(one) for one, _ in sides]
            if None not in shapes and shapes[0] == shapes[1] and _is_one(ratio):
                return node, ()
        elif kind(node) in _SURROGATE:
            stack += [one for one in following if one not in seen]
            seen.update(following)
    return None


def _is_one(ratio: torch.Tensor) -> bool:
    return ratio.numel() > 1 and bool((ratio == 1).all())


def _is_target(node: Node | None) -> bool:
    added = scaled = False
    for _ in range(_DEEP):
        if node is None:
            return False
        name, edges = kind(node), [one for one, _ in node.next_functions]
        if name in _MAXIMA:
            return added and scaled
        linked = [one for one in edges if one is not None]
        if name in ("AddBackward", "SubBackward", "RsubBackward"):
            added = added or len(linked) == 1
        elif name in ("MulBackward", "DivBackward"):
            scaled = True
        elif name not in MOVES:
            return False
        if len(linked) != 1:
            return False
        node = linked[0]
    return False
