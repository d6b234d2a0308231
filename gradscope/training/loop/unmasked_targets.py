"""Finds Q-learning targets that add the next state's value at the end of an episode, too."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from gradscope.explain.shared.frames import assignment, innermost, last_name, shown
from gradscope.records.loop_figures import LoopFact
from gradscope.training.loop.script_lines import main_text

_DISCOUNT = re.compile(r"gamma|discount", re.IGNORECASE)
#: What a variable's name says about the end of an episode, or about its states.
_END = re.compile(
    r"done|term|trunc|final|mask|alive|dead|finish|over$|ends?$|live|absorb|last|cont|^d$|valid",
    re.IGNORECASE,
)
_MAXIMA = frozenset({"max", "amax"})
#: Calls that store or convert a flag: this is no use of it.
_STORES = frozenset(
    {"append", "push", "add", "store", "remember", "tensor", "stack", "float", "int", "bool"}
)


def unmasked_targets() -> Iterator[LoopFact]:
    """Yield ``r + gamma * q(next).max(1).values`` in the main module's file, if the file has
    episodes that end, and nothing but the loop over steps reads their end."""
    found = main_text()
    if found is None:
        return
    file, tree = found
    if not _has_ends(tree) or _uses_ends(tree):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and _is_target(node.value, tree, node.lineno):
            text = ast.unparse(node.value)
            yield LoopFact(
                "unmasked-target", words=(text,), location=f"{shown(file)}:{node.lineno}"
            )


def _has_ends(tree: ast.Module) -> bool:
    """Return True if a flag decides whether the loop begins an episode."""
    tests = [one.test for one in ast.walk(tree) if isinstance(one, ast.If | ast.While | ast.IfExp)]
    return any(isinstance(one, ast.Name) and _is_end(one) for t in tests for one in ast.walk(t))


def _uses_ends(tree: ast.Module) -> bool:
    """Return True if an expression computes with a flag, or chooses by it, or a test on one decides
    about a target. A result that nothing reads is no use."""
    read = {one.id for one in ast.walk(tree) if _is_read(one) and isinstance(one, ast.Name)}
    left: list[ast.AST] = [tree]
    while left:
        node = left.pop()
        match node:
            case ast.Assign(targets=[ast.Name(id=name)]) if name not in read:
                continue
            case ast.BinOp() | ast.UnaryOp() | ast.Subscript() | ast.Compare():
                if _ends_in(node):
                    return True
            case ast.Call(func=of, args=args, keywords=named) if last_name(of) not in _STORES:
                if any(_ends_in(one) for one in (*args, *(one.value for one in named))):
                    return True
            case ast.If(test=test, body=body, orelse=other) if _ends_in(test):
                if any(_holds_maximum(one) for one in (*body, *other)):
                    return True
                left += [*body, *other]
                continue
            case ast.IfExp(test=test, body=body, orelse=other) if _ends_in(test):
                if _holds_maximum(body) or _holds_maximum(other):
                    return True
                left += [body, other]
                continue
            case ast.While(body=body) if _ends_in(node.test):
                left += body
                continue
            case ast.For(target=target) if _ends_in(target):
                return True  # over samples: a test on each may decide
        left += ast.iter_child_nodes(node)
    return False


def _is_read(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)


def _is_end(node: ast.expr) -> bool:
    name = last_name(node)
    return bool(_END.search(name)) and "eps" not in name.lower()


def _ends_in(node: ast.AST) -> bool:
    return any(_is_end(one) for one in ast.walk(node) if isinstance(one, ast.Name | ast.Attribute))


def _holds_maximum(node: ast.AST) -> bool:
    return any(
        isinstance(one, ast.Call) and last_name(one.func) in _MAXIMA for one in ast.walk(node)
    )


def _is_target(value: ast.expr, tree: ast.Module, line: int) -> bool:
    """Return True for a sum with a product of a discount and a maximum."""
    if not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.Add):
        return False
    return any(_is_discounted(side, tree, line) for side in (value.left, value.right))


def _is_discounted(side: ast.expr, tree: ast.Module, line: int) -> bool:
    if not isinstance(side, ast.BinOp) or not isinstance(side.op, ast.Mult):
        return False
    for factor, other in ((side.left, side.right), (side.right, side.left)):
        if not _DISCOUNT.search(last_name(factor)):
            continue
        made = (
            assignment(other.id, innermost(tree, line), line)
            if isinstance(other, ast.Name)
            else None
        )
        return _holds_maximum(other if made is None else made.value)
    return False
