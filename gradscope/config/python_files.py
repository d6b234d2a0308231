"""What a Python file defines, read from its text: it is parsed and never run."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_LARGEST: Final = 1_000_000


def classes_of(path: Path) -> list[str]:
    """The classes of a file that have a base, as models do; none where it cannot be read."""
    return [node.name for node in _classes(path)]


def attributes_of(path: Path, name: str) -> list[str]:
    """What a class gives itself in its methods by a call: its layers are among these."""
    found = [node for node in _classes(path) if node.name == name]
    names = (
        target.attr
        for node in ast.walk(ast.Module(list(found), []))
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        for target in node.targets
        if isinstance(target, ast.Attribute)
        and isinstance(target.value, ast.Name)
        and target.value.id == "self"
    )
    return list(dict.fromkeys(names))


def _classes(path: Path) -> Iterator[ast.ClassDef]:
    try:
        if not path.is_file() or path.stat().st_size > _LARGEST:
            return
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return
    yield from (node for node in tree.body if isinstance(node, ast.ClassDef) and node.bases)
