"""Finds contrastive losses of pairs whose two terms are exchanged, by the script's text."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from gradscope.explain.shared.frames import (
    assignment,
    assignments,
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
#: Functions and classes that give a distance, also if they get a difference; functions and names of
#: a similarity; methods that a distance may end with.
_DISTANCES = frozenset({"pairwise_distance", "PairwiseDistance", "cdist", "dist"})
_OF_DIFFERENCES = frozenset({"norm", "vector_norm", "sqrt", "sum"})
_SIMILARITY = re.compile(r"cos|sim|dot", re.IGNORECASE)
_ENDS = frozenset(
    {"pow", "square", "sqrt", "squeeze", "view", "reshape", "flatten", "clamp", "sum"}
)
#: Names of a label of each sample.
_LABELS = re.compile(r"(^|_)(y|labels?|targets?|class|classes|cls|ids?|identity)\d*($|_)", re.I)
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

    As in ``(1 - y) * d ** 2 + y * relu(margin - d) ** 2`` with ``y = (a == b).float()``. ``d`` must
    be a distance by the text: with a similarity the sum is right.
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
                label, apart, kept = found  # the label whose ones are kept at a margin
                if not _is_distance(kept, scope, tree, line, _DEEP):
                    continue
                same = _means_same(ast.Name(label), scope, tree, line, _DEEP)
                if same is not None and same == apart:
                    return ExchangedPairs(label, "same" if same else "different")
    return None


def _sides(left: ast.expr, right: ast.expr) -> tuple[str, bool, ast.expr] | None:
    """Return the label of a contrastive loss, True if the pairs for which it is 1 are kept at a
    margin, and what is kept there; None for another sum."""
    one, other = _term(left), _term(right)
    if one is None or other is None or one[0] != other[0]:
        return None
    (label, of_ones, hinge), (_, others_ones, others_hinge) = one, other
    kept = hinge or others_hinge
    if of_ones == others_ones or (hinge and others_hinge) or kept is None:
        return None
    return label, of_ones == (hinge is not None), kept


def _term(term: ast.expr) -> tuple[str, bool, ast.expr | None] | None:
    """Return the label that multiplies a term, True if it is the label and not 1 minus it, and what
    is kept at a margin, if anything is."""
    factors = list(_factors(term))
    kept = (_kept(node) for one in factors for node in ast.walk(one))
    hinge = next((one for one in kept if one is not None), None)
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


def _kept(node: ast.AST) -> ast.expr | None:
    """Return ``d`` for ``relu(margin - d)``."""
    if not isinstance(node, ast.Call) or last_name(node.func) not in _HINGES:
        return None
    of = [node.func.value] if isinstance(node.func, ast.Attribute) else []
    for part in (*node.args, *of):
        for one in ast.walk(part):
            match one:
                case ast.BinOp(left=ast.Constant(), op=ast.Sub(), right=kept):
                    return kept
                case ast.BinOp(left=ast.Name() | ast.Attribute() as left, op=ast.Sub(), right=kept):
                    if _MARGIN.search(last_name(left)):
                        return kept
    return None


def _is_distance(value: ast.expr, scope: ast.AST, tree: ast.Module, line: int, deep: int) -> bool:
    """Return True if the text shows that a value is a distance: ``(a - b).norm(dim=1)``, a call of
    ``nn.PairwiseDistance``, ``1 - F.cosine_similarity(a, b)``."""
    match value:
        case ast.Name(id=name):
            made = assignment(name, scope, line)
            if made is not None and deep and isinstance(made.targets[0], ast.Name):
                return _is_distance(made.value, scope, tree, made.lineno, deep - 1)
            return made is None and "dist" in name.lower()
        case ast.BinOp(left=ast.Constant(value=1 | 1.0), op=ast.Sub(), right=other):
            named = (
                last_name(o) for o in ast.walk(other) if isinstance(o, ast.Name | ast.Attribute)
            )
            return any(map(_SIMILARITY.search, named))
        case ast.BinOp(left=left, op=ast.Pow() | ast.Add(), right=_):
            return _is_distance(left, scope, tree, line, deep) or _is_difference(left, scope, line)
        case ast.Call(func=of):
            calls = (o.value for o in assignments(tree, ast.unparse(of)))
            kinds = [one.func for one in calls if isinstance(one, ast.Call)]
            if any(last_name(kind) in _DISTANCES for kind in (of, *kinds)):
                return True
            inner = of.value if isinstance(of, ast.Attribute) else None
            parts = [one for one in (inner, *value.args) if one is not None]
            if last_name(of) in _OF_DIFFERENCES and any(
                _is_difference(one, scope, line) for one in parts
            ):
                return True
            return (
                inner is not None
                and last_name(of) in _ENDS
                and _is_distance(inner, scope, tree, line, deep)
            )
    return False


def _is_difference(value: ast.expr, scope: ast.AST, line: int) -> bool:
    """Return True for ``a - b``, also as ``(a - b) ** 2``, and for a variable that is one."""
    match value:
        case ast.Name(id=name):
            made = assignment(name, scope, line)
            return (
                made is not None
                and isinstance(made.value, ast.BinOp)
                and (_is_difference(made.value, scope, made.lineno))
            )
        case ast.BinOp(left=left, op=ast.Sub()):
            return not isinstance(left, ast.Constant)
        case ast.BinOp(left=left, op=ast.Pow()):
            return _is_difference(left, scope, line)
        case ast.Call(func=ast.Attribute(value=inner)):
            return any(_is_difference(one, scope, line) for one in (inner, *value.args[:1]))
    return False


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
            found = _of_variable(name, scope, tree, line, deep - 1) if deep else None
            if _DIFFERENT.search(name) or _SAME.search(name):
                named = not _DIFFERENT.search(name)
                return named if found in (None, named) else None
            return found
    compared = [o for o in ast.walk(value) if isinstance(o, ast.Compare)]
    if len(compared) == 1 and _are_labels(compared[0], scope, tree):
        (operator, *more) = compared[0].ops
        if not more and isinstance(operator, ast.Eq | ast.NotEq):
            return isinstance(operator, ast.Eq)
    names = [o for o in ast.walk(value) if isinstance(o, ast.Name) and _is_label(o, value)]
    if not compared and len(names) == 1 and names[0] is not value:
        return _means_same(names[0], scope, tree, line, deep)
    return None


def _are_labels(comparison: ast.Compare, scope: ast.AST, tree: ast.Module) -> bool:
    """Return True if both sides are labels of samples: elements of one variable, variables that are
    set together, or names of labels. One of them may be a class: ``labels == anomaly``."""
    sides = (comparison.left, comparison.comparators[0])
    one, other = names = [last_name(_root(side)) for side in sides]
    whole = [name for name, side in zip(names, sides, strict=True) if side is _root(side)]
    if not one or not other or any(_is_constant(name, tree) for name in whole):
        return False
    if one.rstrip("0123456789") == other.rstrip("0123456789") or all(map(_LABELS.search, names)):
        return True
    return any(
        isinstance(node, ast.Tuple)
        and isinstance(node.ctx, ast.Store)
        and {one, other} <= set(map(last_name, node.elts))
        for node in ast.walk(scope)
    )


def _root(value: ast.expr) -> ast.expr:
    """Return ``y`` for ``y[i].view(-1, 1)``."""
    while True:
        match value:
            case ast.Subscript(value=inner) | ast.Call(func=ast.Attribute(value=inner)):
                value = inner
            case _:
                return value


def _is_constant(name: str, tree: ast.Module) -> bool:
    """Return True for a variable that is set to a number, as ``anomaly = 3``."""
    return name.isupper() or any(
        isinstance(one.value, ast.Constant) for one in assignments(tree, name)
    )


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
