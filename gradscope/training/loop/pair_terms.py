"""Finds contrastive losses of pairs whose two terms are exchanged, by the script's text."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from gradscope.explain.shared.frames import (
    assignment,
    innermost,
    is_at,
    last_name,
    tree_of,
)

#: Names of labels that are 1 for pairs of one class, and for pairs of two.
_SAME = re.compile(r"(^|_)(is_?)?(same|similar|match|matching)($|_)", re.IGNORECASE)
_DIFFERENT = re.compile(r"(^|_)(is_?)?(different|dissimilar)($|_)", re.IGNORECASE)
#: Functions that leave out pairs beyond a margin, and names of one.
_HINGES = frozenset({"clamp", "clamp_min", "relu", "max", "maximum", "clip"})
_MARGIN = re.compile(r"margin|^m$", re.IGNORECASE)
#: So many variables and calls are followed.
_DEEP = 4

_Function = ast.FunctionDef


class ExchangedPairs(NamedTuple):
    """The label's name at the loss, and its meaning: the pairs for which it is 1."""

    label: str
    ones: str


@lru_cache(maxsize=64)
def exchanged_pairs(file: str, line: int) -> ExchangedPairs | None:
    """Return the fault of a sum on this line: pairs of one class are kept at a margin, and pairs
    of two are drawn together. None without one, or if the text does not say what a label means.

    As in ``(1 - y) * d ** 2 + y * relu(margin - d) ** 2`` with ``y = (a == b).float()``.
    """
    tree = tree_of(file)
    if tree is None:
        return None
    scope = innermost(tree, line)
    for node in ast.walk(scope):
        match node:
            case ast.BinOp(left=left, op=ast.Add(), right=right) if is_at(node, line):
                found = _sides(left, right)
                if found is None:
                    continue
                label, apart = found  # the label whose ones are kept at a margin
                same = _means_same(ast.Name(label), scope, tree, line, _DEEP)
                if same is not None and same == apart:
                    return ExchangedPairs(label, "same" if same else "different")
    return None


def _sides(left: ast.expr, right: ast.expr) -> tuple[str, bool] | None:
    """Return the label of a contrastive loss, and True if the pairs for which it is 1 are kept at a
    margin; None for another sum."""
    one, other = _term(left), _term(right)
    if one is None or other is None or one[0] != other[0]:
        return None
    (label, of_ones, hinge), (_, others_ones, others_hinge) = one, other
    if of_ones == others_ones or hinge == others_hinge:
        return None
    return label, of_ones == hinge


def _term(term: ast.expr) -> tuple[str, bool, bool] | None:
    """Return the label that multiplies a term, True if it is the label and not 1 minus it, and True
    if the term ends at a margin."""
    factors = list(_factors(term))
    hinge = any(_is_hinge(node) for one in factors for node in ast.walk(one))
    for one in factors:
        match one:
            case ast.Name(id=name):
                if not _MARGIN.search(name):
                    return name, True, hinge
            case ast.BinOp(left=ast.Constant(value=1 | 1.0), op=ast.Sub(), right=ast.Name(id=name)):
                return name, False, hinge
    return None


def _factors(term: ast.expr) -> Iterator[ast.expr]:
    match term:
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            yield from _factors(left)
            yield from _factors(right)
        case ast.BinOp(left=left, op=ast.Div(), right=ast.Constant()):
            yield from _factors(left)
        case _:
            yield term


def _is_hinge(node: ast.AST) -> bool:
    """Return True for ``relu(margin - d)``."""
    if not isinstance(node, ast.Call) or last_name(node.func) not in _HINGES:
        return False
    of = node.func.value if isinstance(node.func, ast.Attribute) else None
    return any(
        isinstance(one, ast.BinOp)
        and isinstance(one.op, ast.Sub)
        and (
            isinstance(one.left, ast.Constant)
            or (
                (isinstance(one.left, ast.Name | ast.Attribute))
                and bool(_MARGIN.search(last_name(one.left)))
            )
        )
        for part in (*node.args, of)
        if part is not None
        for one in ast.walk(part)
    )


def _means_same(
    value: ast.expr, scope: ast.AST, tree: ast.Module, line: int, deep: int
) -> bool | None:
    """Return True if a value is 1 for pairs of one class, False if for pairs of two; None if the
    text does not say it."""
    match value:
        case ast.BinOp(left=ast.Constant(value=1 | 1.0), op=ast.Sub(), right=inner):
            found = _means_same(inner, scope, tree, line, deep)
            return None if found is None else not found
        case ast.Name(id=name):
            if _DIFFERENT.search(name) or _SAME.search(name):
                return not _DIFFERENT.search(name)
            return _of_variable(name, scope, tree, line, deep - 1) if deep else None
    compared = [o for o in ast.walk(value) if isinstance(o, ast.Compare)]
    if len(compared) == 1 and not isinstance(compared[0].comparators[0], ast.Constant):
        (operator, *more) = compared[0].ops
        if not more and isinstance(operator, ast.Eq | ast.NotEq):
            return isinstance(operator, ast.Eq)
    names = [o for o in ast.walk(value) if isinstance(o, ast.Name) and _is_label(o, value)]
    if not compared and len(names) == 1 and names[0] is not value:
        return _means_same(names[0], scope, tree, line, deep)
    return None


def _is_label(name: ast.Name, value: ast.expr) -> bool:
    """Return True for ``y`` in ``y.float()``, not for a function or an index."""
    node: ast.expr = value
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not node.args:
        node = node.func.value
    return node is name


def _of_variable(name: str, scope: ast.AST, tree: ast.Module, line: int, deep: int) -> bool | None:
    made = assignment(name, scope, line)
    if made is not None:
        (target,) = made.targets
        if isinstance(target, ast.Name):
            return _means_same(made.value, scope, tree, made.lineno, deep)
        if isinstance(target, ast.Tuple) and isinstance(made.value, ast.Call):
            place = [last_name(one) for one in target.elts].index(name) - len(target.elts)
            return _of_result(last_name(made.value.func), place, tree, deep)
        return None
    if isinstance(scope, _Function) and name in (names := [o.arg for o in scope.args.args]):
        given = [
            _means_same(one, innermost(tree, one.lineno), tree, one.lineno, deep)
            for call in _calls(scope, tree)
            for one in _argument(call, scope, names.index(name))
        ]
        return given[0] if len(set(given)) == 1 else None
    for node in ast.walk(scope):
        if isinstance(node, ast.For) and isinstance(node.target, ast.Tuple):
            names = [last_name(one) for one in node.target.elts]
            if name in names:
                return _of_result("__getitem__", names.index(name) - len(names), tree, deep)
    return None


def _of_result(function: str, place: int, tree: ast.Module, deep: int) -> bool | None:
    """Return the meaning of an element of what the only function of this name returns."""
    found = [o for o in ast.walk(tree) if isinstance(o, _Function) and o.name == function]
    if len(found) != 1 or not deep:
        return None
    returns = [o for o in ast.walk(found[0]) if isinstance(o, ast.Return)]
    if len(returns) != 1 or not isinstance(returns[0].value, ast.Tuple):
        return None
    elements = returns[0].value.elts
    if len(elements) < -place:
        return None
    return _means_same(elements[place], found[0], tree, returns[0].lineno + 1, deep - 1)


def _argument(call: ast.Call, function: _Function, place: int) -> list[ast.expr]:
    """Return the argument of a call for a parameter, by the number of the parameter."""
    of = function.args
    if any(isinstance(one, ast.Starred) for one in call.args):
        place -= len(of.args) - len(of.defaults)  # counted from the end
    elif of.args[0].arg == "self":
        place -= 1
    return call.args[place:][:1]


def _calls(function: _Function, tree: ast.Module) -> Iterator[ast.Call]:
    """Yield the calls of a function of the file, or of the objects of its class."""
    owner = next(
        (o for o in ast.walk(tree) if isinstance(o, ast.ClassDef) and function in o.body), None
    )
    called = {function.name}
    if owner is not None and function.name in ("forward", "__call__"):
        made = (o for o in ast.walk(tree) if isinstance(o, ast.Assign))
        called = {
            last_name(one.targets[0])
            for one in made
            if isinstance(one.value, ast.Call) and last_name(one.value.func) == owner.name
        }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and last_name(node.func) in called:
            yield node
