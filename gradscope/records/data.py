"""Converts records to plain data and JSON, and back."""

from __future__ import annotations

import functools
import json
import math
import sys
import types
import typing
from collections.abc import Callable, Iterable
from dataclasses import MISSING, Field, fields, is_dataclass
from operator import attrgetter
from typing import Any, TypeVar

from gradscope.errors import ConfigError, Place

#: Marks a field that few records fill: JSON leaves out its default.
SPARSE = {"sparse": True}


def renamed(old: str, *, sparse: bool = False) -> dict[str, object]:
    """Return the metadata of a renamed field: readers accept both names."""
    return {"old_name": old, **(SPARSE if sparse else {})}


_Record = TypeVar("_Record")
#: Fields of any content, such as a report's ``config``, nest no deeper.
MAX_DEPTH = 100


def to_data(record: Any) -> Any:
    """Convert a record to dicts, lists, strings, numbers and None; a non-finite number becomes
    None."""
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
    """Return the JSON text of ``to_data(record)``, on one line and without spaces; fast."""
    try:
        return _ENCODER.encode(record)
    except (TypeError, ValueError):  # a non-finite number, or a key that is no text
        return _ENCODER.encode(to_data(record))


def _named(record: Any) -> dict[str, Any]:
    """Return the fields of a record by name, without those that are left out at their default."""
    kind = type(record)
    read = _READERS.get(kind)
    if read is None:
        if not is_dataclass(kind):
            raise TypeError(f"{kind.__name__} is not a record")
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
    """Make the record whose ``to_data`` is ``data``; ``file`` is its source.

    Raises:
        ConfigError: a field is missing, has a wrong type, or is nested too deeply; the message
            names it.
    """
    try:
        record: _Record = _reader_of(typing.cast(Any, kind))(data)
    except RecursionError:
        raise ConfigError("the JSON nests too deeply for a report", place=Place(file)) from None
    except _WrongData as wrong:
        where = "".join(reversed(wrong.where)).lstrip(".")
        if wrong.lacking:
            raise ConfigError(f"the report lacks `{where}`", place=Place(file)) from None
        raise ConfigError(wrong.message, place=Place(file, key=where or None)) from None
    return record


class _WrongData(Exception):
    """A mismatch of expected and found data; ``where`` is extended from the inside out while the
    error is passed up."""

    def __init__(self, wanted: str, data: Any, *where: str, lacking: bool = False) -> None:
        self.message = f"expected {wanted}, found {excerpt(data)}"
        self.where = [*where]
        self.lacking = lacking


@functools.cache
def _reader_of(kind: Any) -> Callable[[Any], Any]:
    """Return the reader for data of that kind: a record, tuple, dict, union or plain type.

    Cached: to inspect a kind takes longer than to read it, and a report has many records.
    """
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return _read_any
    if origin in (typing.Union, types.UnionType):
        return _read_union(arguments)
    if is_dataclass(kind):
        return _read_record(typing.cast(type, kind))
    if origin is tuple:
        return _read_tuple(arguments)
    if origin is dict:
        return _read_dict(arguments[1])
    return _read_float if kind is float else _read_plain(kind)


def _read_any(data: Any) -> Any:
    level = [data]
    for _ in range(MAX_DEPTH):
        level = [inner for item in level for inner in _inside(item)]
        if not level:
            return data
    raise RecursionError


def _inside(item: Any) -> Iterable[Any]:
    return item.values() if type(item) is dict else item if type(item) is list else ()


def _read_float(data: Any) -> Any:
    # 1e999 reads as infinity, and an integer can be larger than any float.
    if type(data) in (float, int) and -_LARGEST <= data <= _LARGEST:
        return data
    raise _WrongData("a number", data)


def _read_plain(kind: type) -> Callable[[Any], Any]:
    wanted = _PLAIN[kind]

    def read(data: Any) -> Any:
        if type(data) is kind:
            return data
        raise _WrongData(wanted, data)

    return read


def _read_union(kinds: tuple[Any, ...]) -> Callable[[Any], Any]:
    optional = type(None) in kinds
    *others, last = (_reader_of(kind) for kind in kinds if kind is not type(None))
    if optional and not others:
        return lambda data: None if data is None else last(data)

    def read(data: Any) -> Any:
        if data is None and optional:
            return None
        for other in others:
            try:
                return other(data)
            except _WrongData:
                continue
        return last(data)

    return read


def _read_tuple(kinds: tuple[Any, ...]) -> Callable[[Any], Any]:
    every = [_reader_of(kind) for kind in kinds if kind is not Ellipsis]
    length = None if kinds[-1:] == (Ellipsis,) else len(kinds)

    def read(data: Any) -> Any:
        if type(data) is not list:
            raise _WrongData("a list", data)
        if length is not None and len(data) != length:
            raise _WrongData(f"{length} items", data)
        readers = every if length is not None else every * len(data)
        found: list[Any] = []
        try:
            for one, item in zip(readers, data, strict=True):
                found.append(one(item))
        except _WrongData as wrong:
            wrong.where.append(f"[{len(found)}]")
            raise
        return tuple(found)

    return read


def _read_dict(kind: Any) -> Callable[[Any], Any]:
    one = _reader_of(kind)

    def read(data: Any) -> Any:
        if type(data) is not dict:
            raise _WrongData("a mapping", data)
        found: dict[str, Any] = {}
        for key, item in data.items():
            try:
                found[key] = one(item)
            except _WrongData as wrong:
                wrong.where.append(f".{key}")
                raise
        return found

    return read


def _read_record(kind: type) -> Callable[[Any], Any]:
    readers: dict[str, Callable[[Any], Any]] = {}
    old_names = {f.name: f.metadata["old_name"] for f in fields(kind) if "old_name" in f.metadata}
    required = [
        f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING
    ]

    def read(data: Any) -> Any:
        if type(data) is not dict:
            raise _WrongData("a mapping", data)
        if not readers:  # not before: a record may hold others of its own kind
            hints = typing.get_type_hints(kind)
            readers.update({f.name: _reader_of(hints[f.name]) for f in fields(kind)})
        values: dict[str, Any] = {}
        name = ""
        try:
            for name, one in readers.items():
                if name in data:
                    values[name] = one(data[name])
                elif name in old_names and old_names[name] in data:
                    values[name] = one(data[old_names[name]])
        except _WrongData as wrong:
            wrong.where.append(f".{name}")
            raise
        for name in required:
            if name not in values:
                raise _WrongData("", None, f".{name}", lacking=True)
        return kind(**values)

    return read


_LARGEST = sys.float_info.max
_PLAIN = {int: "an integer", str: "a string", bool: "true or false", type(None): "null"}


def excerpt(data: Any) -> str:
    """Return plain data as a short quote for an error."""
    try:
        found = json.dumps(data, default=repr)
    except RecursionError:
        return "what nests too deeply"
    return found if len(found) <= 40 else found[:39] + "…"
