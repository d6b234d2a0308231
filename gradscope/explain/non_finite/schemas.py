"""Reads the effect of an ATen operation on memory from its schema."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload

from gradscope.explain.shared.operations import Trait, by_operator

#: Hands a number to Python.
LEAVES_TORCH = "local_scalar_dense"
_RUNNING = ("running_mean", "running_var")


@dataclass(frozen=True, slots=True)
class OperatorSchema:
    """One overload of one operation.

    Attributes:
        name: without underscores: ``softmax``, ``div`` for ``div_``.
        arguments: their names.
        written: those that are written to, and ``updated`` those of them that are read before.
        idle: makes nothing new: a view, a question, uninitialised memory.
        pointwise: each element separately.
        many: works on lists of tensors, one entry at a time.
        decides: gives indices that it found by comparing: a NaN among what it compares decides.
    """

    name: str
    arguments: tuple[str, ...]
    written: tuple[str, ...]
    updated: tuple[str, ...]
    idle: bool
    pointwise: bool
    many: bool
    decides: bool

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments by their names."""
        return dict(zip(self.arguments, args, strict=False)) | kwargs


@functools.cache
def schema_of(func: OpOverload) -> OperatorSchema:
    """What the schema says of an overload."""
    schema = func._schema
    plain = schema.name.split("::")[1]
    name = plain.strip("_").removeprefix("foreach_")
    written = tuple(a.name for a in schema.arguments if a.alias_info and a.alias_info.is_write)
    operation = by_operator(name)
    written += _RUNNING if operation.has(Trait.RUNNING) else ()
    arguments = {a.name: a for a in schema.arguments}
    overwrites = operation.has(Trait.OVERWRITES, Trait.UNINITIALISED)
    updated = tuple(n for n in written if not arguments[n].kwarg_only and not overwrites)
    each = plain.startswith("_foreach_") and name != "norm"
    makes = any(r.alias_info is None for r in schema.returns)
    idle = operation.has(Trait.UNINITIALISED) or not (makes or written)
    return OperatorSchema(
        name,
        tuple(arguments),
        written,
        updated,
        idle,
        torch.Tag.pointwise in func.tags or name in ("to_copy", "copy") or each,
        plain.startswith("_foreach_") or any("Tensor[]" in str(arguments[n].type) for n in written),
        operation.has(Trait.COMPARES) or (name in ("max", "min") and "dim" in arguments),
    )


def entries(
    schema: OperatorSchema, arguments: dict[str, Any]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """The arguments of each entry of an operation on lists; of another one, all of them."""
    if not schema.many:
        yield 0, arguments
        return
    lists = [v for v in arguments.values() if isinstance(v, list | tuple) and v]
    for i in range(max(map(len, lists), default=0)):
        yield i, {n: _entry(v, i) for n, v in arguments.items()}


def _entry(value: Any, index: int) -> Any:
    if isinstance(value, list | tuple) and value:
        return value[min(index, len(value) - 1)]
    return value
