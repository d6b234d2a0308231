"""Finds mistakes in the script's Q-learning targets, by its text."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from gradscope.explain.shared.frames import assignment, innermost, last_name, shown
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
            if (
                isinstance(sum_, ast.BinOp)
                and sum_.lineno > node.lineno
                and _adds_index(sum_, name)
            ):
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


def _adds_index(sum_: ast.BinOp, name: str) -> bool:
    """Return True for a reward plus a product that has this variable as a factor."""
    if not isinstance(sum_.op, ast.Add):
        return False
    for side, other in ((sum_.left, sum_.right), (sum_.right, sum_.left)):
        reward = any(
            isinstance(one, ast.Name | ast.Attribute) and _REWARD.search(last_name(one))
            for one in ast.walk(side)
        )
        factors = _factors(other) if reward and isinstance(other, ast.BinOp) else ()
        if any(isinstance(one, ast.Name) and one.id == name for one in factors):
            return True
    return False


def _factors(product: ast.expr) -> Iterator[ast.expr]:
    """Yield the factors of a product."""
    match product:
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            yield from _factors(left)
            yield from _factors(right)
        case _:
            yield product


_DISCOUNT = re.compile(r"gamma|discount", re.IGNORECASE)
#: Names of variables for the end of an episode, or for its states.
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


#: Names of the flag that is true at the end of an episode.
_FLAG = re.compile(
    r"^(b_?|batch_?)?(d|dones?|terminals?|terminated|finished|ended)(_?(batch|b|t|tensor|flags?))?$",
    re.IGNORECASE,
)


def inverted_ends() -> Iterator[LoopFact]:
    """Yield ``r + gamma * q(next).max(1).values * done`` in the main module's file: it keeps the
    next state's value at the end of an episode alone.

    A file that inverts such a flag anywhere, as ``1 - done`` or ``push(not done)``, is left out.
    """
    file, tree = main_text() or ("", ast.Module([], []))
    found = [
        (node, flag)
        for node in ast.walk(tree)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add)
        if (flag := _times_flag(node)) is not None
    ]
    if found and _is_stored(tree) and not _inverts(tree):
        for node, flag in found:
            words = ast.unparse(node), flag
            yield LoopFact("inverted-end", words=words, location=f"{shown(file)}:{node.lineno}")


def _is_stored(tree: ast.Module) -> bool:
    """Return True if a name such as `done` occurs, and not `d` alone."""
    names = (one.id for one in ast.walk(tree) if isinstance(one, ast.Name))
    return any(len(name) > 1 and _FLAG.search(name) for name in names)


def _times_flag(sum_: ast.BinOp) -> str | None:
    """Return the flag that multiplies a discounted value in a sum with a reward; None without."""
    for side, other in ((sum_.left, sum_.right), (sum_.right, sum_.left)):
        reward = any(
            isinstance(one, ast.Name | ast.Attribute) and _REWARD.search(last_name(one))
            for one in ast.walk(other)
        )
        factors = list(map(_unconverted, _factors(side)))
        if reward and len(factors) > 2 and any(_DISCOUNT.search(last_name(one)) for one in factors):
            for one in factors:
                if isinstance(one, ast.Name | ast.Attribute) and _FLAG.search(last_name(one)):
                    return ast.unparse(one)
    return None


def _unconverted(factor: ast.expr) -> ast.expr:
    """Return the factor before a conversion such as ``done.float()``."""
    match factor:
        case ast.Call(func=ast.Attribute(value=of, attr="float" | "to" | "int" | "unsqueeze")):
            return of
    return factor


def _inverts(tree: ast.Module) -> bool:
    """Return True if an expression inverts a flag; the test of a loop or an ``if`` does not
    count."""
    tests = {
        id(one)
        for node in ast.walk(tree)
        if isinstance(node, ast.If | ast.While | ast.IfExp | ast.Assert)
        for one in ast.walk(node.test)
    }
    for node in ast.walk(tree):
        match node:
            case ast.UnaryOp(op=ast.Not() | ast.Invert(), operand=inverted):
                pass
            case ast.BinOp(left=ast.Constant(value=1 | 1.0 | True), op=ast.Sub(), right=inverted):
                pass
            case ast.Compare(left=inverted, comparators=[ast.Constant()]):
                pass
            case ast.IfExp(test=inverted, body=ast.Constant(), orelse=ast.Constant()):
                pass
            case ast.Call(func=function, args=[inverted, *_]):
                if "not" not in last_name(function):
                    continue
            case _:
                continue
        if id(node) in tests:
            continue
        names = (one for one in ast.walk(inverted) if isinstance(one, ast.Name | ast.Attribute))
        if any(_FLAG.search(last_name(one)) for one in names):
            return True
    return False


def _has_ends(tree: ast.Module) -> bool:
    """Return True if a flag decides whether the loop begins an episode."""
    tests = [one.test for one in ast.walk(tree) if isinstance(one, ast.If | ast.While | ast.IfExp)]
    return any(isinstance(one, ast.Name) and _is_end(one) for t in tests for one in ast.walk(t))


def _uses_ends(tree: ast.Module) -> bool:
    """Return True if an expression computes with a flag or chooses by it, or if a test on a flag
    decides about a target. A result that nothing reads does not count."""
    names = (one for one in ast.walk(tree) if isinstance(one, ast.Name))
    read = {one.id for one in names if isinstance(one.ctx, ast.Load)}
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
