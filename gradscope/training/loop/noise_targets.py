"""Finds a denoiser's loss whose target is another draw of noise than the one in its input."""

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
    shown,
    tree_of,
)

#: Functions that draw noise, and functions and classes of a difference between two tensors.
_DRAWS = frozenset({"randn_like", "randn", "normal", "normal_"})
_DIFFERENCE = re.compile(r"(mse|l1|huber)_?loss$|^l2$", re.IGNORECASE)
#: Functions that read variables by their names, and one after which a draw gives the same again.
_HIDDEN_USES = frozenset({"locals", "vars", "globals", "exec", "eval", "fork_rng"})
#: So many assignments are followed.
_DEEP = 4


class OtherNoise(NamedTuple):
    """The target, its line as ``train.py:31``, and the input with the noise in it."""

    target: str
    made_at: str
    given: str


@lru_cache(maxsize=64)
def other_noise(file: str, line: int) -> OtherNoise | None:
    """Return the fault of a difference on this line, by the text; None without one.

    The target is noise of the shape of ``x``, which nothing else in the function reads, and the
    model's input is made of ``x`` and another draw, as in
    ``mse_loss(net(q_sample(x, t), t), torch.randn_like(x))``.
    """
    tree = tree_of(file)
    if tree is None:
        return None
    scope = innermost(tree, line)
    for one, other in _compared(tree, scope, line):
        for given, target in ((one, other), (other, one)):
            drawn = _drawn(target, scope, tree)
            if drawn is None:
                continue
            draw, like = drawn
            for argument in _inputs(given, scope, line):
                names, draws = _made_of(argument, scope, tree, line, like, _DEEP)
                if like in names and draws:
                    made_at = f"{shown(file)}:{draw.lineno}"
                    return OtherNoise(ast.unparse(target), made_at, ast.unparse(argument))
    return None


def _compared(tree: ast.Module, scope: ast.AST, line: int) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield the two sides of each difference on a line."""
    for node in ast.walk(scope):
        match node:
            case ast.Call(func=of, args=[one, other, *_]) if is_at(node, line):
                made = assignments(tree, ast.unparse(of))
                kinds = [o.value.func for o in made if isinstance(o.value, ast.Call)] or [of]
                if all(_DIFFERENCE.search(last_name(kind)) for kind in kinds):
                    yield one, other
            case ast.BinOp(left=one, op=ast.Sub(), right=other) if is_at(node, line):
                yield one, other


def _drawn(target: ast.expr, scope: ast.AST, tree: ast.Module) -> tuple[ast.expr, str] | None:
    """Return the draw that a target is, if nothing else uses it, and the variable whose shape it
    has."""
    if isinstance(target, ast.Name):
        mentioned = (o for o in ast.walk(scope) if isinstance(o, ast.Name | ast.Attribute))
        if any(last_name(one) in _HIDDEN_USES for one in mentioned):
            return None
        stores = [o for o in assignments(scope, target.id) if innermost(tree, o.lineno) is scope]
        if len(stores) != 1 or len(list(_uses(target.id, scope))) != 2:  # one store, one use
            return None
        target = stores[0].value
    if isinstance(target, ast.Call) and any(one.arg == "generator" for one in target.keywords):
        return None  # another generator with its seed may have drawn the same
    match target:
        case ast.Call(func=of, args=[ast.Name(id=like), *_]) if last_name(of) == "randn_like":
            return target, like
        case ast.Call(
            func=of,
            args=[
                ast.Attribute(value=ast.Name(id=like), attr="shape")
                | ast.Call(func=ast.Attribute(value=ast.Name(id=like), attr="size"), args=[]),
                *_,
            ],
        ) if last_name(of) == "randn":
            return target, like
    return None


def _uses(name: str, node: ast.AST) -> Iterator[ast.Name]:
    """Yield the uses of a variable, not of a variable of its name in a function inside."""
    for one in ast.iter_child_nodes(node):
        if isinstance(one, ast.Name) and one.id == name:
            yield one
        elif isinstance(one, ast.FunctionDef | ast.Lambda) and name in _locals(one):
            continue
        yield from _uses(name, one)


def _locals(function: ast.FunctionDef | ast.Lambda) -> set[str]:
    stored = {
        one.id
        for one in ast.walk(function)
        if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)
    }
    return stored | {one.arg for one in ast.walk(function.args) if isinstance(one, ast.arg)}


def _inputs(given: ast.expr, scope: ast.AST, line: int) -> Iterator[ast.expr]:
    """Yield the arguments of the calls that make the other side."""
    if isinstance(given, ast.Name):
        made = assignment(given.id, scope, line)
        if made is None:
            return
        given = made.value
    for node in ast.walk(given):
        if isinstance(node, ast.Call):
            yield from node.args


def _made_of(
    value: ast.expr, scope: ast.AST, tree: ast.Module, line: int, like: str, deep: int
) -> tuple[set[str], bool]:
    """Return the variables that a value is made of, and True if noise is drawn for it, perhaps in
    a function of the file; what the variable ``like`` is made of is left out."""
    names, draws = set[str](), False
    for node in ast.walk(value):
        if isinstance(node, ast.Call):
            draws = draws or _draws(node, tree)
        elif isinstance(node, ast.Name) and node.id not in names:
            names.add(node.id)
            follows = deep and node.id != like
            made = assignment(node.id, scope, line) if follows else None
            if made is not None:
                more, drawn = _made_of(made.value, scope, tree, made.lineno, like, deep - 1)
                names, draws = names | more, draws or drawn
    return names, draws


def _draws(call: ast.Call, tree: ast.Module) -> bool:
    name = last_name(call.func)
    if name in _DRAWS:
        return True
    return any(
        isinstance(one, ast.Call) and last_name(one.func) in _DRAWS
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name == name
        for one in ast.walk(node)
    )
