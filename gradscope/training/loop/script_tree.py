"""The text of a script as Python's own parser reads it: functions, assignments, names."""

from __future__ import annotations

import ast
import functools
import linecache


@functools.lru_cache(maxsize=8)
def tree_of(file: str) -> ast.Module | None:
    """The syntax tree of a file; None if it cannot be read."""
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return None


def is_at(node: ast.expr | ast.stmt, line: int) -> bool:
    """Return True if a node covers a line."""
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def innermost(tree: ast.Module, line: int) -> ast.AST:
    """The innermost function around a line."""
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


def called_name(call: ast.Call) -> str:
    """The last part of the name of what is called: ``dropout`` of ``F.dropout(x)``."""
    return getattr(call.func, "attr", None) or getattr(call.func, "id", "") or ""
