"""Finds objects in nested tuples, lists, mappings, dataclasses and named tuples, with their paths.

Objects are found by class, so nothing here imports torch.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

Kind = TypeVar("Kind")
_NOTHING: frozenset[int] = frozenset()


def find(tree: Any, kind: type[Kind]) -> Iterator[tuple[str, Kind]]:
    """Yield every object of a class, in order, with its path: ``""``, ``0``, ``logits``,
    ``1.boxes``."""
    return walk(tree, lambda item: is_a(item, kind))


def is_a(item: Any, kind: type | tuple[type, ...]) -> bool:
    """Return True if the object's type is a subclass; its ``__class__`` may lie."""
    return issubclass(type(item), kind)


def walk(tree: Any, wanted: Callable[[Any], bool]) -> Iterator[tuple[str, Any]]:
    """Yield every wanted object, in order, with its path; its content is not searched.

    A container that contains itself is entered only once.
    """
    stack: list[tuple[str, Any, frozenset[int]]] = [("", tree, _NOTHING)]
    while stack:
        path, item, around = stack.pop()
        if wanted(item):
            yield path, item
            continue
        parts = _parts(item)
        if not parts or id(item) in around:
            continue
        around = around | {id(item)}
        prefix = f"{path}." if path else ""
        stack.extend((f"{prefix}{key}", part, around) for key, part in reversed(parts))


def is_deeper(tree: Any, most: int) -> bool:
    """Return True if plain lists and mappings nest in more than ``most`` levels."""
    level = [tree]
    for _ in range(most):
        level = [
            part
            for item in level
            if isinstance(item, (list, dict))
            for part in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return False
    return any(isinstance(item, (list, dict)) for item in level)


def replaced(tree: Any, kind: type[Kind], change: Callable[[Kind], Kind]) -> Any:
    """Return the same nesting with every object of a class changed; equal objects stay one."""
    done: dict[int, tuple[Kind, Kind]] = {}

    def one(item: Any) -> Any:
        if is_a(item, kind):
            if id(item) not in done:
                # The original is kept beside its image: a freed one's id could be given again.
                done[id(item)] = (item, change(item))
            return done[id(item)][1]
        if is_a(item, tuple):
            parts = [one(part) for part in item]
            return type(item)(*parts) if hasattr(item, "_fields") else type(item)(parts)
        if is_a(item, list):
            return _like(item, [one(part) for part in item])
        if is_a(item, Mapping):
            return _like(item, {key: one(part) for key, part in item.items()})
        if is_dataclass(type(item)):
            changed = copy.copy(item)
            for f in fields(item):
                # Not setattr: the dataclass may be frozen.
                object.__setattr__(changed, f.name, one(getattr(item, f.name)))
            return changed
        return item

    new = one(tree)
    done.clear()  # `one` refers to itself: what it refers to would wait for the garbage collector
    return new


def _parts(item: Any) -> list[tuple[Any, Any]] | None:
    """Return the items of a container with their keys; None if it is no container."""
    if is_a(item, Mapping):
        return list(item.items())
    if is_a(item, tuple) and hasattr(item, "_fields"):
        return list(zip(item._fields, item, strict=True))
    if is_a(item, (list, tuple)):
        return list(enumerate(item))
    if is_dataclass(type(item)):
        return [(f.name, getattr(item, f.name, None)) for f in fields(item)]
    return None


def _like(item: Any, parts: Any) -> Any:
    """Return ``parts`` in a container of the same class, with the original's other attributes."""
    if type(item) in (list, dict):
        return parts
    changed = copy.copy(item)
    if isinstance(item, list):
        changed[:] = parts
    else:
        for key, part in parts.items():
            changed[key] = part
    return changed
