"""The reference's own walk through whatever a call may take or return; needs torch alone."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor


def rebuilt(value: Any, path: str, change: Callable[[Tensor, str], Tensor]) -> Any:
    """``value`` with every tensor in its containers replaced; other objects stay as they are."""

    def inner(key: Any, item: Any) -> Any:
        return rebuilt(item, f"{path}.{key}" if path else str(key), change)

    if isinstance(value, Tensor):
        return change(value, path)
    if isinstance(value, Mapping):
        new = copy.copy(value)
        for key in value:
            new[key] = inner(key, value[key])
        return new
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(inner(key, getattr(value, key)) for key in value._fields))
    if isinstance(value, list | tuple):
        return type(value)(inner(i, item) for i, item in enumerate(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        new = copy.copy(value)
        for field in dataclasses.fields(value):
            object.__setattr__(new, field.name, inner(field.name, getattr(value, field.name)))
        return new
    return value
