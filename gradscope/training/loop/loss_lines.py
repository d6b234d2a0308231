"""Reads the script's text at a loss: terms without a gradient, the line that makes its targets."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache

from gradscope.explain.shared.frames import (
    assignment,
    innermost,
    is_at,
    last_name,
    shown,
    tree_of,
)
from gradscope.training.loop.script_lines import main_text


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
        first: True for the first term without a graph, False for a later term.
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
    """Return the call that converts a tensor to a number, in the last assignment of a term's
    variable."""
    if isinstance(term, ast.BinOp) and isinstance(term.op, ast.Mult | ast.Div):
        if _is_plain(term.left) and _is_plain(term.right):
            return _set_before(term.left, scope, line) or _set_before(term.right, scope, line)
        return None
    if not isinstance(term, ast.Name):
        return None
    last = assignment(term.id, scope, line)
    return None if last is None else _number(last.value)


_NAMES = ("target", "targets", "label", "labels")
#: How many assignments are followed.
_TARGETS_DEEP = 4


@lru_cache(maxsize=256)  # sampled steps ask for the same line
def targets_made(file: str, line: int) -> str | None:
    """Return the last assignment of the variable that a loss on this line gets as its targets, as
    ``train.py:31``; None if the text does not show one.

    Follows a function of the same file to what it returns, and a batch to the tensor that it is a
    part of: ``y[idx]``, but not ``y[:, 1:]``.
    """
    tree = tree_of(file)
    for call in ast.walk(tree) if tree is not None else ():
        given = _targets(call) if isinstance(call, ast.Call) and is_at(call, line) else None
        if tree is None or given is None:
            continue
        made = _made(given, tree, line, _TARGETS_DEEP)
        return None if made is None else f"{shown(file)}:{made}"
    return None


def ignored_at(index: int) -> str | None:
    """Return the only line of the main module's file that assigns a negative ignored index to a
    variable, or passes it to a method, as ``labels[:4] = -100``, or ``[-100] * 4 + answer``; None
    without one."""
    found = main_text() if index < 0 else None
    if found is None:
        return None
    file, tree = found
    lines, wanted = set(), {str(index)}
    for node in ast.walk(tree):
        match node:  # ``IGNORE = -100`` names the index
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name.isupper():
                if ast.unparse(value) == str(index):
                    wanted.add(name)
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)]) if name in wanted:
                continue
            case ast.Assign(value=value):
                given = [value]
            case ast.Call(func=ast.Attribute(attr="masked_fill" | "masked_fill_" | "fill_")):
                given = node.args
            case ast.Call(func=ast.Attribute(attr="where" | "full_like")):
                given = node.args
            case _:
                continue
        if any(_is_filled(one, wanted) for one in given):
            lines.add(node.lineno)
    return f"{shown(file)}:{lines.pop()}" if len(lines) == 1 else None


def _is_filled(value: ast.expr, index: set[str]) -> bool:
    """Return True for the index or its name, and for a sum that begins with ``[index] * n``."""
    match value:
        case ast.BinOp(left=left, op=ast.Add()):
            return _is_filled(left, index)
        case ast.BinOp(left=ast.List(elts=[one]), op=ast.Mult()):
            return ast.unparse(one) in index
    return ast.unparse(value) in index


#: What takes class weights, by keyword or at this place.
_WEIGHTED = {"CrossEntropyLoss": 0, "NLLLoss": 0, "cross_entropy": 2, "nll_loss": 2}
_WEIGHTED |= {"BCEWithLogitsLoss": 3, "binary_cross_entropy_with_logits": 5}


def written_weights() -> str | None:
    """Return the only line of the main module's file that gives a loss class weights; None without
    one."""
    file, tree = main_text() or ("", ast.Module([], []))
    lines = {
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and last_name(node.func) in _WEIGHTED
        if any(
            one.arg in ("weight", "pos_weight") and ast.unparse(one.value) != "None"
            for one in node.keywords
        )
        or len(node.args) > _WEIGHTED[last_name(node.func)]
    }
    return f"{shown(file)}:{lines.pop()}" if len(lines) == 1 else None


def _made(name: str, tree: ast.Module, line: int, deep: int) -> int | None:
    """Return the line that makes a variable before a line."""
    scope = innermost(tree, line)
    made = assignment(name, scope, line)
    if made is None or _is_looped(name, scope, made.lineno, line):
        return None
    value = _element(made.targets[0], made.value, name)
    before = None
    if deep > 0:
        match value:
            case ast.Call(func=ast.Name(id=function)):
                place = _place(made.targets[0], name)
                before = _returned(function, place, tree, deep - 1)
            case ast.Subscript(value=ast.Name(id=of), slice=ast.Name() | ast.Call()):
                before = _made(of, tree, made.lineno, deep - 1)
            case ast.Call(func=ast.Attribute(value=ast.Name(id=of), attr="to" | "cuda" | "cpu")):
                before = _made(of, tree, made.lineno, deep - 1)
    return before or made.lineno


def _is_looped(name: str, scope: ast.AST, since: int, line: int) -> bool:
    """Return True if a loop binds the variable after an assignment and before a line."""
    return any(
        isinstance(one, ast.For)
        and since < one.lineno < line
        and any(isinstance(part, ast.Name) and part.id == name for part in ast.walk(one.target))
        for one in ast.walk(scope)
    )


def _place(target: ast.expr, name: str) -> int | None:
    """Return the place of a variable in a tuple of targets; None for a single target."""
    if not isinstance(target, ast.Tuple):
        return None
    names = (one.id if isinstance(one, ast.Name) else "" for one in target.elts)
    return next((place for place, one in enumerate(names) if one == name), None)


def _element(target: ast.expr, value: ast.expr, name: str) -> ast.expr:
    """Return the part of the value that a variable gets."""
    place = _place(target, name)
    if place is None or not isinstance(value, ast.Tuple) or place >= len(value.elts):
        return value
    return value.elts[place]


def _returned(function: str, place: int | None, tree: ast.Module, deep: int) -> int | None:
    """Return the line that makes the value that a function of the file returns at a place."""
    found = [one for one in tree.body if isinstance(one, ast.FunctionDef) and one.name == function]
    ends = [one for one in ast.walk(found[0]) if isinstance(one, ast.Return)] if found else []
    if len(ends) != 1 or ends[0].value is None:
        return None
    value: ast.expr = ends[0].value
    if place is not None:
        if not isinstance(value, ast.Tuple) or place >= len(value.elts):
            return None
        value = value.elts[place]
    made = _made(value.id, tree, ends[0].lineno, deep) if isinstance(value, ast.Name) else None
    return made or ends[0].lineno


def _targets(call: ast.Call) -> str | None:
    """Return the variable in the second argument of a call, or in the argument with this name."""
    named = (one.value for one in call.keywords if one.arg in _NAMES)
    given = next(named, call.args[1] if len(call.args) > 1 else None)
    while not isinstance(given, ast.Name):  # a slice makes them at the loss itself
        match given:
            case ast.Call(func=of) | ast.Attribute(value=of):
                given = of
            case ast.Subscript(value=of, slice=ast.Name() | ast.Call()):
                given = of
            case _:
                return None
    return given.id
