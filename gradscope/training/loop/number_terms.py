"""Terms of a loss that are Python numbers, so that no gradient goes through them: ``kl.item()``."""

from __future__ import annotations

import ast
import functools
import linecache


def number_term(file: str, line: int) -> tuple[str, int] | None:
    """What made a number of a tensor in a sum on this line, and its line; None without one.

    A variable of the sum is followed to where the same function last set it.
    """
    tree = _tree(file)
    if tree is None:
        return None
    scope = _innermost(tree, line)
    for sum_ in ast.walk(scope):
        if not isinstance(sum_, ast.BinOp) or not isinstance(sum_.op, ast.Add | ast.Sub):
            continue
        for side in (sum_.left, sum_.right) if _is_at(sum_, line) else ():
            found = _number(side) or _set_before(side, scope, line)
            if found is not None:
                return ast.unparse(found), found.lineno
    return None


def _is_at(node: ast.expr | ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


@functools.lru_cache(maxsize=8)
def _tree(file: str) -> ast.Module | None:
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return None


def _innermost(tree: ast.Module, line: int) -> ast.AST:
    """The innermost function around a line."""
    found: ast.AST = tree
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _is_at(node, line):
            found = node  # walked from the outside in
    return found


def _number(term: ast.expr) -> ast.Call | None:
    """The call that makes a number of a tensor, where all of a term hangs on it: a factor."""
    match term:
        case ast.Call(func=ast.Attribute(attr="item"), args=[]):
            return term
        case ast.BinOp(left=left, op=ast.Mult() | ast.Div(), right=right):
            return _number(left) or _number(right)
        case ast.UnaryOp(operand=operand):
            return _number(operand)
    return None


def _set_before(term: ast.expr, scope: ast.AST, line: int) -> ast.Call | None:
    """The same where a variable of the term was set by such a call, last before the line."""
    if isinstance(term, ast.BinOp) and isinstance(term.op, ast.Mult | ast.Div):
        return _set_before(term.left, scope, line) or _set_before(term.right, scope, line)
    if not isinstance(term, ast.Name):
        return None
    last: ast.Assign | None = None
    for node in ast.walk(scope):
        if isinstance(node, ast.Assign) and node.lineno < line and len(node.targets) == 1:
            (target,) = node.targets
            mine = isinstance(target, ast.Name) and target.id == term.id
            if mine and (last is None or last.lineno < node.lineno):
                last = node
    return None if last is None else _number(last.value)
