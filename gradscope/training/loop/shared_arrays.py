"""Finds replay buffers whose items share an array: an environment returned its own state, and
changes it in place."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Sequence
from itertools import combinations, islice
from typing import Any

import numpy as np
import torch

from gradscope.explain.shared.frames import shown
from gradscope.records.loop_figures import LoopFact
from gradscope.training.discovery import names_of, script_lists
from gradscope.training.loop.script_lines import main_text, written

#: The samples in which the script's lists are searched.
_SAMPLES = (3, 6, 9)
#: A shorter list says little; so many of its items are compared.
_FEWEST, _MOST = 16, 2048
#: A transition has a state, an action, a reward and the next state.
_FIELDS = 4
_NUMBERS = int | float | np.generic


class SharedArrays:
    """Searches the lists in the script's variables for tuples that share arrays."""

    def __init__(self) -> None:
        self._found: dict[str, LoopFact] = {}

    def read(self, sample: int) -> None:
        """Search in a sampled step, if it is time to."""
        if sample not in _SAMPLES:
            return
        known = set[int]()  # in this search: a function may call a list by another name
        for name, items in script_lists():
            if len(items) < _FEWEST or id(items) in known or name in self._found:
                continue
            known.add(id(items))
            found = _fact(name, list(islice(items, _MOST)))
            # A batch of a buffer shares its arrays.
            if found is not None and not any(
                (one.location, one.words) == (found.location, found.words)
                for one in self._found.values()
            ):
                self._found[name] = found

    def facts(self) -> Iterator[LoopFact]:
        """Yield a fact for each list: the line that writes into the array, and the names of the
        fields that are one array, if these are two of each item."""
        yield from self._found.values()


def _fact(name: str, items: Sequence[Any]) -> LoopFact | None:
    """Return the first array that items share and that the script's text writes into."""
    for words, array in _shared(items):
        lines = _lines_of(array)
        if lines is not None:
            given, written_at = lines
            return LoopFact(
                "shared-array",
                name,
                count=len(items),
                words=(written_at, *words),
                location=given or written_at,
            )
    return None


def _shared(items: Sequence[Any]) -> Iterator[tuple[tuple[str, ...], object]]:
    """Yield the fields of transitions that are one array in all items, or two of which are one
    array in each."""
    first = items[0]
    kind = type(first)  # not `isinstance`: a lazy proxy would load its object
    if kind is not list and getattr(kind, "__iter__", None) is not tuple.__iter__:
        return
    width = sum(1 for _ in first)
    if width < _FIELDS or not any(issubclass(type(one), _NUMBERS) for one in first):
        return
    if not all(type(one) is kind and sum(1 for _ in one) == width for one in items):
        return
    fields = list(zip(*items, strict=True))
    arrays = [i for i in range(width) if issubclass(type(first[i]), np.ndarray | torch.Tensor)]
    for i in arrays:
        if all(one is first[i] for one in fields[i]):
            yield (), first[i]
    names = getattr(kind, "_fields", None) or [str(i + 1) for i in range(width)]
    for i, j in combinations(arrays, 2):
        if all(one is other for one, other in zip(fields[i], fields[j], strict=True)):
            yield (str(names[i]), str(names[j])), items[-1][i]


def _lines_of(array: object) -> tuple[str | None, str] | None:
    """Return the line that returns an array by one of its names, and the one that writes into it:
    ``return self.state``, ``self.state += move``; None if the text writes nowhere."""
    file, tree = main_text() or ("", ast.Module([], []))
    names = names_of(array)
    # A variable's name is taken for an attribute's only if nothing else is known.
    owned = {one for one in names if one[1] is not None} or names
    for name in sorted({one for one, _ in owned}):
        classes = {
            of.__name__ for one, kind in owned if one == name and kind for of in kind.__mro__
        }
        lines = sorted(_writes(tree.body, name, classes, frozenset(), ""))
        if lines:
            given = written(rf"\breturn\b.*\.{re.escape(name)}(?!\w|\.|\()", file)
            return given, f"{shown(file)}:{lines[0]}"
    return None


def _writes(
    block: Sequence[ast.AST],
    name: str,
    classes: Collection[str],
    fresh: frozenset[str],
    inside: str,
) -> Iterator[int]:
    """Yield the lines of a block that write into an attribute's array, unless the block has just
    set it to a new one, as ``self.goal = np.zeros(4)`` before ``self.goal[3] = 1``.

    Args:
        classes: of the attribute's owner, if known; ``inside``: the class around the block.
        fresh: the texts of the attributes that are set anew.
    """
    for node in block:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                around = node.name if isinstance(node, ast.ClassDef) else inside
                yield from _writes(node.body, name, classes, frozenset(), around)
                continue
            case ast.For() | ast.While() | ast.AsyncFor():  # it may keep the array of each turn
                fresh = frozenset(one for one in fresh if one.startswith("self."))
            case ast.Assign(targets=targets):
                fresh |= {ast.unparse(one) for one in targets if isinstance(one, ast.Attribute)}
        match node:
            case ast.AugAssign(target=target) | ast.Assign(targets=[target]):
                of = target.value if isinstance(target, ast.Subscript) else target
                into = isinstance(target, ast.Subscript) or isinstance(node, ast.AugAssign)
                if into and isinstance(of, ast.Attribute) and of.attr == name:
                    text = ast.unparse(of)
                    other = text.startswith("self.") and inside and classes
                    if text not in fresh and not (other and inside not in classes):
                        yield node.lineno
        for part in ("body", "orelse", "handlers", "finalbody", "cases"):
            yield from _writes(getattr(node, part, ()), name, classes, fresh, inside)
