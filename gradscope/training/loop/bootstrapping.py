"""Finds bootstrapped value targets (from the network's own maximum) through which gradients
flow."""

from __future__ import annotations

from torch.autograd.graph import Node

from gradscope.capture.nodes import MOVES
from gradscope.training.loop.loss_walk import DIFFERENCES, kind, operations

_MAXIMA = frozenset({"MaxBackward", "AmaxBackward"})
_DEEP = 24


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
