"""Parses the text of a script: functions, assignments, names."""

from __future__ import annotations

import ast
import functools
import inspect
import linecache

from gradscope.explain.shared.frames import in_library, is_ours


@functools.cache
def tree_of(file: str) -> ast.Module | None:
    """Return the syntax tree of a file; None if it cannot be read."""
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError, RecursionError):
        return None


def source_file(kind: type) -> str | None:
    """Return the file of a class; None without one, for example for C code or at a prompt."""
    try:
        return inspect.getsourcefile(kind)
    except (TypeError, OSError):
        return None


def classes_of_script(kind: type) -> list[tuple[str, ast.ClassDef]]:
    """Return the text of a class and its file, for classes of the script, not of libraries.

    A file may have several classes of one name.
    """
    file = source_file(kind)
    tree = None if file is None or in_library(file) or is_ours(file) else tree_of(file)
    if tree is None or file is None:
        return []
    return [
        (file, node)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and node.name == kind.__name__
    ]


def is_at(node: ast.expr | ast.stmt, line: int) -> bool:
    """Return True if a node covers a line."""
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def innermost(tree: ast.Module, line: int) -> ast.AST:
    """Return the innermost function around a line."""
    found: ast.AST = tree
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and is_at(node, line):
            found = node  # walked from the outside in
    return found


def assignment(name: str, scope: ast.AST, line: int) -> ast.Assign | None:
    """Return the last assignment of a variable before a line."""
    last: ast.Assign | None = None
    for node in ast.walk(scope):
        if isinstance(node, ast.Assign) and node.lineno < line and len(node.targets) == 1:
            (target,) = node.targets
            names = target.elts if isinstance(target, ast.Tuple) else [target]
            mine = any(isinstance(one, ast.Name) and one.id == name for one in names)
            if mine and (last is None or last.lineno < node.lineno):
                last = node
    return last


def assignments(tree: ast.AST, target: str) -> list[ast.Assign]:
    """Return all assignments of a variable or an attribute, as ``self.scale``."""
    return [
        one
        for one in ast.walk(tree)
        if isinstance(one, ast.Assign) and target in map(ast.unparse, one.targets)
    ]


def products(tree: ast.AST, line: int) -> list[ast.BinOp]:
    """Return the products on a line."""
    return [
        one
        for one in ast.walk(tree)
        if isinstance(one, ast.BinOp) and isinstance(one.op, ast.Mult) and is_at(one, line)
    ]


def factors(tree: ast.AST, line: int) -> list[str]:
    """Return the variables and attributes that are factors of a product on a line."""
    return [
        ast.unparse(side)
        for one in products(tree, line)
        for side in (one.left, one.right)
        if isinstance(side, ast.Name | ast.Attribute)
    ]


def last_name(expression: ast.expr) -> str:
    """Return the last part of a name: ``dropout`` for ``F.dropout``; "" for another expression."""
    if isinstance(expression, ast.Attribute):
        return expression.attr
    return expression.id if isinstance(expression, ast.Name) else ""
