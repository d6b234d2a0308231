"""What an operation of PyTorch's core does to memory, read from its schema."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload

_CHOOSING = frozenset(["argmax", "argmin", "topk", "sort", "multinomial", "kthvalue"])
#: Written to although the schema does not say so: running statistics.
_SECRETLY = dict.fromkeys(
    ("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm"), ("running_mean", "running_var")
)
#: Hands a number to Python.
LEAVING = "local_scalar_dense"

_UNINITIALISED = ("empty", "new_empty", "resize")
_OVERWRITING = frozenset(
    [
        "bernoulli",
        "cauchy",
        "copy",
        "exponential",
        "fill",
        "geometric",
        "log_normal",
        "normal",
        "random",
        "set",
        "uniform",
        "zero",
    ]
)


@dataclass(frozen=True, slots=True)
class Operation:
    """One overload of one operation.

    Attributes:
        name: without underscores: ``softmax``, ``div`` for ``div_``.
        arguments: their names.
        written: those that are written to, and ``updated`` those of them that are read before.
        idle: makes nothing new: a view, a question, uninitialised memory.
        pointwise: each element by itself.
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
def described(func: OpOverload) -> Operation:
    """What the schema says of an overload."""
    schema = func._schema
    plain = schema.name.split("::")[1]
    name = plain.strip("_").removeprefix("foreach_")
    written = tuple(a.name for a in schema.arguments if a.alias_info and a.alias_info.is_write)
    written += _SECRETLY.get(name, ())
    given = {a.name: a for a in schema.arguments}
    overwrites = name in _OVERWRITING or name.startswith(_UNINITIALISED)
    updated = tuple(n for n in written if not given[n].kwarg_only and not overwrites)
    each = plain.startswith("_foreach_") and name != "norm"
    makes = any(r.alias_info is None for r in schema.returns)
    idle = name.startswith(_UNINITIALISED) or not (makes or written)
    return Operation(
        name,
        tuple(given),
        written,
        updated,
        idle,
        torch.Tag.pointwise in func.tags or name in ("to_copy", "copy") or each,
        plain.startswith("_foreach_") or any("Tensor[]" in str(given[n].type) for n in written),
        name in _CHOOSING or (name in ("max", "min") and "dim" in given),
    )


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in an argument or a result of such an operation: bare, or in one list."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)


def entries(operation: Operation, given: dict[str, Any]) -> Iterator[tuple[int, dict[str, Any]]]:
    """The arguments of each entry of an operation on lists; of another one, all of them."""
    if not operation.many:
        yield 0, given
        return
    lists = [v for v in given.values() if isinstance(v, list | tuple) and v]
    for i in range(max(map(len, lists), default=0)):
        yield i, {n: _entry(v, i) for n, v in given.items()}


def _entry(value: Any, index: int) -> Any:
    if isinstance(value, list | tuple) and value:
        return value[min(index, len(value) - 1)]
    return value
