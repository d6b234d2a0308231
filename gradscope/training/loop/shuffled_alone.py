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
    permutation; and batches as ``x[perm[i:j]]`` beside ``y[i:j]``."""
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
    for block in _blocks(tree):
        for mixed, sliced, lineno in _mixed(block, drawn):
            line = f"{shown(file)}:{lineno}"
            yield LoopFact("shuffled-alone", mixed, words=(sliced,), location=line)


def _blocks(tree: ast.Module) -> Iterator[list[ast.stmt]]:
    """Yield the body of each loop."""
    for node in ast.walk(tree):
        if isinstance(node, ast.For | ast.While):
            yield node.body


def _mixed(block: list[ast.stmt], drawn: set[str]) -> Iterator[tuple[str, str, int]]:
    """Yield the arrays of a batch, and its line, if one is in the order of a permutation and the
    other is a slice from the same place; none if that array is also used in the other order."""
    places: dict[str, ast.Slice] = {}
    mixed: dict[str, list[str]] = {}
    sliced: dict[str, list[tuple[str, int]]] = {}
    for statement in block:
        match statement:
            case ast.Assign(
                targets=[ast.Name(id=index)],
                value=ast.Subscript(value=ast.Name(id=of), slice=ast.Slice() as part),
            ) if of in drawn:
                places[index] = part
                continue
        for node in ast.walk(statement):
            match node:
                case ast.Subscript(value=ast.Name(id=name), slice=ast.Name(id=index)) if (
                    index in places
                ):
                    mixed.setdefault(ast.dump(places[index]), []).append(name)
                case ast.Subscript(
                    value=ast.Name(id=name),
                    slice=ast.Subscript(value=ast.Name(id=of), slice=ast.Slice() as part),
                ) if of in drawn:
                    mixed.setdefault(ast.dump(part), []).append(name)
                case ast.Subscript(value=ast.Name(id=name), slice=ast.Slice() as part) if (
                    name not in drawn
                ):
                    sliced.setdefault(ast.dump(part), []).append((name, node.lineno))
    for place, names in mixed.items():
        for name, lineno in sliced.get(place, ()):
            if name not in names:
                yield names[0], name, lineno
                return


def _drawn(node: ast.AST) -> Iterator[str]:
    """Yield the variable that a statement sets to a new permutation."""
    match node:
        case ast.Assign(targets=[ast.Name(id=name)], value=value) if _is_permutation(value):
            yield name


def _is_permutation(value: ast.expr) -> bool:
    """Return True for a call as ``torch.randperm(n)`` or ``np.random.permutation(n)``."""
    return isinstance(value, ast.Call) and last_name(value.func) in _PERMUTATIONS
