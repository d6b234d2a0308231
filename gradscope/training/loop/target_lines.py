"""Finds the line of a script that makes the targets of a loss."""

from __future__ import annotations

import ast
from functools import lru_cache

from gradscope.explain.shared.frames import shown
from gradscope.explain.shared.script_tree import assignment, innermost, is_at, tree_of

_NAMES = ("target", "targets", "label", "labels")


@lru_cache(maxsize=256)  # sampled steps ask for the same line
def targets_made(file: str, line: int) -> str | None:
    """Return the last assignment of the variable that a loss on this line gets as its targets, as
    ``train.py:31``; None if the text does not show one."""
    tree = tree_of(file)
    for call in ast.walk(tree) if tree is not None else ():
        given = _targets(call) if isinstance(call, ast.Call) and is_at(call, line) else None
        if tree is None or given is None:
            continue
        made = assignment(given, innermost(tree, line), line)
        return None if made is None else f"{shown(file)}:{made.lineno}"
    return None


def _targets(call: ast.Call) -> str | None:
    """Return the variable in the second argument of a call, or in the argument with this name."""
    named = (one.value for one in call.keywords if one.arg in _NAMES)
    given = next(named, call.args[1] if len(call.args) > 1 else None)
    while isinstance(given, ast.Call | ast.Attribute):  # a slice makes them at the loss itself
        given = given.func if isinstance(given, ast.Call) else given.value
    return given.id if isinstance(given, ast.Name) else None
