"""Tensors in whatever a module takes and returns, each with the path to its place."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch


def tensors(tree: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor in nested tuples, lists, mappings, dataclasses and named tuples, in order.

    The path of a bare tensor is ``""``, of others ``0``, ``last_hidden_state``, ``1.boxes``. A
    container that holds itself is entered once.
    """
    stack: list[tuple[str, Any]] = [("", tree)]
    entered: set[int] = set()
    while stack:
        path, item = stack.pop()
        if isinstance(item, torch.Tensor):
            yield path, item
            continue
        parts = _parts(item)
        if parts is None or id(item) in entered:
            continue
        entered.add(id(item))
        prefix = f"{path}." if path else ""
        stack.extend((f"{prefix}{key}", part) for key, part in reversed(parts))


def call_tensors(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a call: positional arguments by number, keyword arguments by name."""
    yield from tensors(args)
    yield from tensors(kwargs)


def map_tensors(function: Callable[[torch.Tensor], torch.Tensor], tree: Any) -> Any:
    """The same nesting with every tensor replaced; one tensor in two places stays one."""
    done: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def one(item: Any) -> Any:
        if isinstance(item, torch.Tensor):
            if id(item) not in done:
                # The original is kept beside its image: a freed one's id could be given again.
                done[id(item)] = (item, function(item))
            return done[id(item)][1]
        if isinstance(item, tuple):
            mapped = [one(part) for part in item]
            return type(item)(*mapped) if hasattr(item, "_fields") else type(item)(mapped)
        if isinstance(item, list):
            return _like(item, [one(part) for part in item])
        if isinstance(item, Mapping):
            return _like(item, {key: one(part) for key, part in item.items()})
        if is_dataclass(item) and not isinstance(item, type):
            parts = {f.name: one(getattr(item, f.name)) for f in fields(item)}
            changed = copy.copy(item)
            for name, part in parts.items():
                object.__setattr__(changed, name, part)  # frozen ones too
            return changed
        return item

    return one(tree)


def _like(item: Any, parts: Any) -> Any:
    """``parts`` in a container of the same class, with whatever else the original carries."""
    if type(item) in (list, dict):
        return parts
    changed = copy.copy(item)
    if isinstance(item, list):
        changed[:] = parts
    else:
        for key, part in parts.items():
            changed[key] = part
    return changed


def _parts(item: Any) -> list[tuple[Any, Any]] | None:
    """What a container holds, with keys; None for anything that is not one."""
    if isinstance(item, Mapping):
        return list(item.items())
    if isinstance(item, tuple) and hasattr(item, "_fields"):
        return list(zip(item._fields, item, strict=True))
    if isinstance(item, list | tuple):
        return list(enumerate(item))
    if is_dataclass(item) and not isinstance(item, type):
        return [(f.name, getattr(item, f.name, None)) for f in fields(item)]
    return None
