"""Records ⇄ plain data: dicts, lists, strings, numbers and None. Reading checks every field."""

from __future__ import annotations

import functools
import json
import math
import sys
import types
import typing
from collections.abc import Callable
from dataclasses import MISSING, Field, fields, is_dataclass
from operator import attrgetter
from typing import Any, TypeVar

from gradscope.errors import ConfigError, Place

_Record = TypeVar("_Record")
#: Resolving annotations takes longer than reading the values, and a report has thousands.
_hints = functools.cache(typing.get_type_hints)


def to_data(record: Any) -> Any:
    """A record as dicts, lists, strings, numbers and None; a non-finite number becomes None."""
    if is_dataclass(record) and not isinstance(record, type):
        return {key: to_data(value) for key, value in _named(record).items()}
    if isinstance(record, dict):
        return {str(key): to_data(value) for key, value in record.items()}
    if isinstance(record, list | tuple):
        return [to_data(item) for item in record]
    if isinstance(record, float) and not math.isfinite(record):
        return None
    return record


def to_line(record: Any) -> str:
    """The JSON text of ``to_data(record)``, on one line and without spaces; fast."""
    try:
        return _ENCODER.encode(record)
    except (TypeError, ValueError):  # a non-finite number, or a key that is no text
        return _ENCODER.encode(to_data(record))


def _named(record: Any) -> dict[str, Any]:
    """The fields of a record by name, without those that are left out at their default."""
    kind = type(record)
    read = _READERS.get(kind)
    if read is None:
        if not is_dataclass(kind):
            raise TypeError(f"{kind.__name__} is no record")
        read = _READERS[kind] = _reader(kind)
    return read(record)


_READERS: dict[type, Callable[[Any], dict[str, Any]]] = {}
_ENCODER = json.JSONEncoder(allow_nan=False, separators=(",", ":"), default=_named)


def _reader(kind: type[Any]) -> Callable[[Any], dict[str, Any]]:
    names = tuple(f.name for f in fields(kind))
    sparse = {f.name: _default(f) for f in fields(kind) if "sparse" in f.metadata}
    if len(names) == 1:
        return lambda record: {names[0]: getattr(record, names[0])}
    values = attrgetter(*names)

    def read(record: Any) -> dict[str, Any]:
        found = dict(zip(names, values(record), strict=True))
        for name, default in sparse.items():
            if found[name] == default:
                del found[name]
        return found

    return read


def _default(one: Field[Any]) -> Any:
    return one.default if one.default_factory is MISSING else one.default_factory()


def from_data(kind: type[_Record], data: Any, *, file: str = "report") -> _Record:
    """The record of that kind whose ``to_data`` is ``data``; ``file`` is where that came from.

    Raises:
        ConfigError: a field is missing or of the wrong type; says which.
    """
    record: _Record = _read(kind, data, "", file)
    return record


def _read(kind: Any, data: Any, where: str, file: str) -> Any:
    """``data`` as ``kind``: a record, a tuple, a dict, a union or a plain type."""
    if kind is Any:
        return data
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _read_union(arguments, data, where, file)
    if is_dataclass(kind):
        return _read_record(typing.cast(type, kind), data, where, file)
    if origin is tuple:
        _expect(isinstance(data, list), "a list", data, where, file)
        if arguments[-1] is Ellipsis:
            return tuple(_read(arguments[0], d, f"{where}[{i}]", file) for i, d in enumerate(data))
        _expect(len(data) == len(arguments), f"{len(arguments)} items", data, where, file)
        pairs = enumerate(zip(arguments, data, strict=True))
        return tuple(_read(a, d, f"{where}[{i}]", file) for i, (a, d) in pairs)
    if origin is dict:
        _expect(isinstance(data, dict), "a mapping", data, where, file)
        return {key: _read(arguments[1], d, f"{where}.{key}", file) for key, d in data.items()}
    if kind is float:
        right = isinstance(data, int | float) and not isinstance(data, bool)
        # 1e999 reads as infinity, and an integer can be larger than any float.
        _expect(right and abs(data) <= sys.float_info.max, "a number", data, where, file)
        return data
    names = {int: "a whole number", str: "a string", bool: "true or false", type(None): "null"}
    right = isinstance(data, kind) and not (kind is int and isinstance(data, bool))
    _expect(right, names[kind], data, where, file)
    return data


def _read_union(kinds: tuple[Any, ...], data: Any, where: str, file: str) -> Any:
    if data is None and type(None) in kinds:
        return None
    kinds = tuple(kind for kind in kinds if kind is not type(None))
    for kind in kinds[:-1]:
        try:
            return _read(kind, data, where, file)
        except ConfigError:
            continue
    return _read(kinds[-1], data, where, file)


def _read_record(kind: type, data: Any, where: str, file: str) -> Any:
    _expect(isinstance(data, dict), "a mapping", data, where, file)
    hints = _hints(kind)
    values = {}
    for f in fields(kind):
        place = f"{where}.{f.name}".lstrip(".")
        if f.name in data:
            values[f.name] = _read(hints[f.name], data[f.name], place, file)
        elif f.default is MISSING and f.default_factory is MISSING:
            raise ConfigError(f"the report lacks `{place}`", place=Place(file))
    return kind(**values)


def _expect(right: bool, wanted: str, data: Any, where: str, file: str) -> None:
    if not right:
        fault = f"expected {wanted}, found {excerpt(data)}"
        raise ConfigError(fault, place=Place(file, key=where or None))


def excerpt(data: Any) -> str:
    """Plain data as an error quotes it."""
    found = json.dumps(data, default=repr)
    return found if len(found) <= 40 else found[:39] + "…"
