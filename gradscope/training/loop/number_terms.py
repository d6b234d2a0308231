"""Finds terms of a loss without a gradient: Python numbers, such as ``kl.item()``, and terms of
gradients without a graph."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradscope.explain.shared.frames import assignment, innermost, is_at, tree_of


def number_term(file: str, line: int) -> tuple[str, int] | None:
    """Return the call in a sum on this line that converts a tensor to a number, and its line; None
    without one.

    Only terms of the sum count: a factor, a target in a square or a quotient by a number is often
    intended. A variable is followed to its last assignment in the same function.
    """
    for terms, scope, _ in _sums(file, line):
        for term in terms:
            found = _number(term) or _set_before(term, scope, line)
            if found is not None:
                return ast.unparse(found), found.lineno
    return None


def graphless_term(file: str, line: int, asked: int, *, first: bool) -> str | None:
    """Return the term of a sum on this line that uses gradients computed on another line.

    Args:
        asked: the line that calls ``torch.autograd.grad``.
        first: True for the first term without a graph, False for another one.
    """
    for terms, scope, tree in _sums(file, line):
        for term in terms[:1] if first else terms[1:]:
            if _comes_from(term, scope, tree, asked, line):
                return ast.unparse(term)
    return None


def _sums(file: str, line: int) -> Iterator[tuple[list[ast.expr], ast.AST, ast.Module]]:
    """Yield the terms of each sum on a line, with the function around it, and the file's syntax
    tree."""
    tree = tree_of(file)
    if tree is None:
        return
    scope = innermost(tree, line)
    for statement in ast.walk(scope):
        value = getattr(statement, "value", None)
        if not isinstance(statement, ast.Assign | ast.Return | ast.Expr | ast.AnnAssign):
            continue
        if not isinstance(value, ast.expr) or not is_at(statement, line):
            continue
        terms = list(_terms(value))
        if len(terms) > 1:
            yield terms, scope, tree


#: So many assignments are followed.
_DEEP = 6


def _comes_from(
    value: ast.expr, scope: ast.AST, tree: ast.Module, asked: int, before: int, depth: int = 0
) -> bool:
    """Return True if an expression is computed from a line's result, as far as names show."""
    if is_at(value, asked):
        return True
    for node in ast.walk(value):
        if isinstance(node, ast.Call):
            called = node.func
            name = getattr(called, "id", None) or getattr(called, "attr", None)
            if any(
                isinstance(one, ast.FunctionDef) and one.name == name and is_at(one, asked)
                for one in ast.walk(tree)
            ):
                return True
        elif isinstance(node, ast.Name) and depth < _DEEP:
            last = assignment(node.id, scope, before)
            if last is not None and _comes_from(
                last.value, scope, tree, asked, last.lineno, depth + 1
            ):
                return True
    return False


def _terms(value: ast.expr) -> Iterator[ast.expr]:
    """Yield the terms of a sum; for ``(…).backward()``, the terms inside the parentheses."""
    match value:
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub(), right=right):
            yield from _terms(left)
            yield from _terms(right)
        case ast.UnaryOp(operand=operand):
            yield from _terms(operand)
        case ast.Tuple(elts=[first, *_]):
            yield from _terms(first)
        case ast.Call(func=ast.Attribute(value=of, attr="backward")):
            yield from _terms(of)
        case _:
            yield value


def _number(term: ast.expr) -> ast.Call | None:
    """Return the call that converts a tensor to a number, if a term is that call or a multiple of
    it."""
    match term:
        case ast.Call(func=ast.Attribute(attr="item"), args=[]):
            return term
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            found = _number(right) if _is_plain(left) else None
            return found or (_number(left) if _is_plain(right) else None)
        case ast.BinOp(left=left, op=ast.Div(), right=right) if _is_plain(right):
            return _number(left)
        case ast.UnaryOp(operand=operand):
            return _number(operand)
    return None


def _is_plain(factor: ast.expr) -> bool:
    if isinstance(factor, ast.UnaryOp):
        factor = factor.operand
    return isinstance(factor, ast.Constant | ast.Name | ast.Attribute)


def _set_before(term: ast.expr, scope: ast.AST, line: int) -> ast.Call | None:
    """Return such a call in the last assignment of a term's variable before the line."""
    if isinstance(term, ast.BinOp) and isinstance(term.op, ast.Mult | ast.Div):
        if _is_plain(term.left) and _is_plain(term.right):
            return _set_before(term.left, scope, line) or _set_before(term.right, scope, line)
        return None
    if not isinstance(term, ast.Name):
        return None
    last = assignment(term.id, scope, line)
    return None if last is None else _number(last.value)
