"""Finds an array that the script shuffles without the array that belongs to it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradscope.explain.shared.frames import last_name, shown
from gradscope.records.loop_figures import LoopFact
from gradscope.training.loop.script_lines import main_text

_PERMUTATIONS = frozenset({"randperm", "permutation"})


def shuffled_alone() -> Iterator[LoopFact]:
    """Yield assignments of the main module's file as ``x = x[perm]``, if nothing else uses the
    permutation."""
    found = main_text()
    if found is None:
        return
    file, tree = found
    uses: dict[str, int] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            uses[node.id] = uses.get(node.id, 0) + 1
    drawn = {one for node in ast.walk(tree) for one in _drawn(node)}
    for node in ast.walk(tree):
        match node:
            case ast.Assign(
                targets=[ast.Name(id=name)],
                value=ast.Subscript(value=ast.Name(id=of), slice=index),
            ) if name == of:
                once = isinstance(index, ast.Name) and index.id in drawn and uses[index.id] == 1
                if once or _is_permutation(index):
                    line = f"{shown(file)}:{node.lineno}"
                    yield LoopFact("shuffled-alone", name, location=line)


def _drawn(node: ast.AST) -> Iterator[str]:
    """Yield the variable that a statement sets to a new permutation."""
    match node:
        case ast.Assign(targets=[ast.Name(id=name)], value=value) if _is_permutation(value):
            yield name


def _is_permutation(value: ast.expr) -> bool:
    """Return True for a call as ``torch.randperm(n)`` or ``np.random.permutation(n)``."""
    return isinstance(value, ast.Call) and last_name(value.func) in _PERMUTATIONS
