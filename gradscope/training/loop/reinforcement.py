"""Checks the losses of reinforcement learning: the sign, and values that should be constants."""

from __future__ import annotations

import ast
import functools
import re

import torch
from torch.autograd.graph import Node
from torch.utils._python_dispatch import _disable_current_modes

from gradscope.capture.graph import LEAF
from gradscope.capture.nodes import MOVES
from gradscope.explain.shared.frames import (
    assignment,
    innermost,
    last_name,
    products,
    tree_of,
)
from gradscope.training.loop.loss_walk import (
    DIFFERENCES,
    LAYERS,
    SOFTMAX,
    adds_bias,
    kind,
    line_of,
    operations,
    saved,
    shape_of,
)

#: Names of variables of which more is better.
_GOOD = re.compile(r"(?<![a-z])(returns?|rewards?|advantages?|advs?|gaes?|rtgs?)(?![a-z])")
_LETTERS = frozenset({"R", "G", "Gt", "G_t", "R_t"})
#: The chosen entries of a row; between them and the softmax, as `torch.distributions` has it.
_CHOSEN = frozenset({"GatherBackward", "IndexBackward"})
_BETWEEN = MOVES | {"LogBackward", "ClampBackward", "DivBackward", "SubBackward"}
_SAME = MOVES | {"MeanBackward", "SumBackward", "StackBackward", "CatBackward"}
_MOST, _DEEP = 128, 8


def ascended_policy(root: Node) -> tuple[str, Node] | None:
    """Return the name of the returns, and the product, if a term of a loss is the sum of
    log-probabilities of chosen actions times returns, with a positive sign.

    The returns must be a plain variable, named so, that the script never negates.
    """
    stack: list[tuple[Node, bool, tuple[str, Node] | None]] = [(root, False, None)]
    visited = 0
    while stack and visited < _MOST:
        node, negative, product = stack.pop()
        visited += 1
        if isinstance(node, LEAF):
            continue
        name, edges = kind(node), [one for one, _ in node.next_functions]
        if name in _CHOSEN and _from_softmax(node):
            if product is not None:
                return None if negative else product
            continue
        if name in ("NegBackward", "RsubBackward"):
            negative = not negative
        elif name in ("MulBackward", "DivBackward"):
            if len(edges) != 2 or None not in edges:
                continue
            returns = _by_returns(node)
            if returns is not None:
                product = returns, node
            else:
                sign = _sign(node)
                if sign is None:
                    continue
                negative ^= sign < 0
        elif name == "SubBackward":
            if len(edges) == 2 and edges[1] is not None:
                stack.append((edges[1], not negative, product))
            edges = edges[:1]
        elif name not in _SAME and name != "AddBackward":
            continue
        kept = edges if name == "AddBackward" else [one for one in edges if one is not None][:1]
        stack += [(one, negative, product) for one in kept if one is not None]
    return None


def _from_softmax(node: Node) -> bool:
    """Return True if entries of log-probabilities are chosen."""
    stack, visited = [one for one, _ in node.next_functions], 0
    while stack and visited < _DEEP:
        one, visited = stack.pop(), visited + 1
        if one is None:
            continue
        if kind(one) in SOFTMAX or kind(one) == "LogsumexpBackward":
            return True
        if kind(one) in _BETWEEN:
            stack += [following for following, _ in one.next_functions]
    return False


def _factor(node: Node) -> torch.Tensor | None:
    """Return the constant that a node multiplies or divides by."""
    return saved(node).get("other" if node.next_functions[1][0] is None else "self")


def _sign(node: Node) -> int | None:
    """Return the sign of a constant factor; None if its elements have both signs."""
    factor = _factor(node)
    if factor is None or factor.is_complex():
        return None
    with _disable_current_modes():  # as in `number_of`
        if bool((factor.detach() >= 0).all()):
            return 1
        return -1 if bool((factor.detach() <= 0).all()) else None


def _by_returns(node: Node) -> str | None:
    """Return the name of the returns that a node multiplies by; None for any other product."""
    factor, line = _factor(node), line_of(node)
    if line is None or factor is None or kind(node) != "MulBackward":
        return None
    name, alone = _returns(*line)
    # If a line has several products, one with a single number may be another, such as a product
    # with -1.
    return name if alone or factor.numel() > 1 else None


@functools.cache
def _returns(file: str, line: int) -> tuple[str | None, bool]:
    """Return the returns in a product on a line, as written, and whether the line has no other
    product."""
    tree = tree_of(file)
    if tree is None:
        return None, False
    found = products(tree, line)
    for side in (side for one in found for side in (one.right, one.left)):
        name = _variable(side)
        if _is_good(name) and not _is_turned(name, tree, line):
            return ast.unparse(side), len(found) == 1
    return None, False


def _variable(expression: ast.expr) -> str:
    """Return the name of a variable, also for one of its elements or if it is detached; "" for
    anything else."""
    match expression:
        case ast.Subscript(value=of):
            return _variable(of)
        case ast.Call(func=ast.Attribute(value=of, attr="detach" | "to" | "float")):
            return _variable(of)
    return last_name(expression)


def _is_good(name: str) -> bool:
    return name in _LETTERS or _GOOD.search(name.lower()) is not None


def _is_turned(name: str, tree: ast.Module, line: int) -> bool:
    """Return True if the script negates a variable, or subtracts a return from something."""
    minus = (one for one in ast.walk(tree) if isinstance(one, ast.UnaryOp))
    if any(isinstance(one.op, ast.USub) and _variable(one.operand) == name for one in minus):
        return True
    last = assignment(name, innermost(tree, line), line)
    value = None if last is None else last.value
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Sub):
        return _is_good(_variable(value.right)) and not _is_good(_variable(value.left))
    return isinstance(value, ast.UnaryOp)


_MAXIMA = frozenset({"MaxBackward", "AmaxBackward"})
_OF_TARGET = 24
#: Operations between the ratio of two policies and the loss.
_SURROGATE = frozenset(
    {"NegBackward", "MeanBackward", "SumBackward", "AddBackward", "SubBackward", "MulBackward"}
    | {"DivBackward", "MinimumBackward", "MaximumBackward", "ClampBackward"}
)
_OF_SURROGATE = 64


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
    while stack and len(seen) < _OF_SURROGATE:
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


def attached_advantage(root: Node) -> tuple[Node, tuple[float, ...]] | None:
    """Return the product of a chosen action's log-probability and an advantage, ``returns -
    values``, whose values have a gradient: the actor's loss trains the critic."""
    stack, seen = [root], {root}
    while stack and len(seen) < _OF_SURROGATE:
        node = stack.pop()
        following = [one for one, _ in node.next_functions if one is not None]
        if kind(node) == "MulBackward" and len(following) == 2:
            one, other = map(_moved, following)
            for action, advantage in ((one, other), (other, one)):
                if kind(action) in _CHOSEN and _from_softmax(action) and _less_values(advantage):
                    return node, ()
        elif kind(node) in _SURROGATE or kind(node) in _SAME:
            stack += [one for one in following if one not in seen]
            seen.update(following)
    return None


def _moved(node: Node) -> Node:
    """Return the operation upstream of signs and moves; a choice of entries is not a move."""
    while kind(node) in (MOVES - _CHOSEN) | {"NegBackward"}:
        before = node.next_functions[0][0]
        if before is None:
            break
        node = before
    return node


def _less_values(node: Node) -> bool:
    """Return True for a constant minus the output of a layer."""
    edges = [one for one, _ in node.next_functions]
    if kind(node) != "SubBackward" or len(edges) != 2 or edges[0] is not None or edges[1] is None:
        return False
    values = _moved(edges[1])
    return kind(values) in LAYERS or (kind(values) == "AddBackward" and adds_bias(values))


def _is_one(ratio: torch.Tensor) -> bool:
    return ratio.numel() > 1 and bool((ratio == 1).all())


def _is_target(node: Node | None) -> bool:
    added = scaled = False
    for _ in range(_OF_TARGET):
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
