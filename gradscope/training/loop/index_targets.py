"""Finds Q-learning targets that use the index of the best action instead of its value."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from gradscope.explain.shared.frames import innermost, last_name, shown
from gradscope.records.loop_figures import LoopFact
from gradscope.training.loop.script_lines import main_text

#: Matches the names of variables that hold a reward.
_REWARD = re.compile(r"^rs?$|rew", re.IGNORECASE)


def index_targets() -> Iterator[LoopFact]:
    """Yield ``best = q(next).max(1)[1]`` in the main module's file, if its function adds a multiple
    of ``best`` to a reward."""
    found = main_text()
    if found is None:
        return
    file, tree = found
    for node in ast.walk(tree):
        name = _index(node) if isinstance(node, ast.Assign) else None
        if name is None or not isinstance(node, ast.Assign):
            continue
        for sum_ in ast.walk(innermost(tree, node.lineno)):
            if isinstance(sum_, ast.BinOp) and sum_.lineno > node.lineno and _counts(sum_, name):
                words = (ast.unparse(sum_), ast.unparse(node.value))
                yield LoopFact(
                    "index-as-value", name, words=words, location=f"{shown(file)}:{node.lineno}"
                )
                break


def _index(node: ast.Assign) -> str | None:
    """Return the variable that gets the index of a maximum; None for another assignment."""
    if len(node.targets) != 1:
        return None
    match node.targets[0], node.value:
        case ast.Name(id=name), ast.Call(func=ast.Attribute(attr="argmax")):
            return name
        case ast.Name(id=name), ast.Attribute(value=of, attr="indices") if _is_maximum(of):
            return name
        case ast.Name(id=name), ast.Subscript(value=of, slice=ast.Constant(value=1)) if _is_maximum(
            of
        ):
            return name
        case ast.Tuple(elts=[_, ast.Name(id=name)]), of if _is_maximum(of):
            return name
    return None


def _is_maximum(node: ast.expr) -> bool:
    """Return True for a maximum along an axis, which has values and indices."""
    if not isinstance(node, ast.Call) or last_name(node.func) != "max":
        return False
    of_torch = isinstance(node.func, ast.Attribute) and last_name(node.func.value) == "torch"
    return bool(node.keywords) or len(node.args) == 1 + of_torch


def _counts(sum_: ast.BinOp, name: str) -> bool:
    """Return True for a reward plus a product that has this variable as a factor."""
    if not isinstance(sum_.op, ast.Add):
        return False
    for side, other in ((sum_.left, sum_.right), (sum_.right, sum_.left)):
        reward = any(
            isinstance(one, ast.Name | ast.Attribute) and _REWARD.search(last_name(one))
            for one in ast.walk(side)
        )
        if reward and isinstance(other, ast.BinOp) and name in _factors(other):
            return True
    return False


def _factors(product: ast.expr) -> Iterator[str]:
    """Yield the variables that are factors of a product."""
    match product:
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            yield from _factors(left)
            yield from _factors(right)
        case ast.Name(id=name):
            yield name
