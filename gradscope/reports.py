"""Report ⇄ strict JSON. The reader checks every field, so a damaged file is named, not believed."""

from __future__ import annotations

import functools
import json
import math
import sys
import types
import typing
from collections.abc import Iterable
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any

from gradscope.errors import ConfigError, Place
from gradscope.records import Report

SCHEMA = "gradscope.report/1"
_WRITE = "write a report with `gradscope inspect … -o report.json`"
#: A report nests 7 deep; only its ``config`` is free to go deeper.
MAX_DEPTH = 100


#: Resolving annotations takes longer than reading the values, and a report has thousands.
_hints = functools.cache(typing.get_type_hints)


def to_data(record: Any) -> Any:
    """A record as dicts, lists, strings, numbers and None; a non-finite number becomes None."""
    if is_dataclass(record) and not isinstance(record, type):
        data = {f.name: to_data(getattr(record, f.name)) for f in fields(record)}
        if "values" in data and data["values"] is None:
            del data["values"]
        return data
    if isinstance(record, dict):
        return {str(key): to_data(value) for key, value in record.items()}
    if isinstance(record, list | tuple):
        return [to_data(item) for item in record]
    if isinstance(record, float) and not math.isfinite(record):
        return None
    return record


def dumps(report: Report) -> str:
    """The report as one JSON document, keys in the order of the records."""
    data = to_data(report)
    head = {"schema": data.pop("schema"), "status": data.pop("status")}
    return json.dumps({**head, **data}, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def loads(text: str, *, file: str = "report") -> Report:
    """The report that ``dumps`` wrote.

    Raises:
        ConfigError: not JSON, not a report, or a field of the wrong type; says which.
    """
    if not text.strip():
        raise ConfigError("the report is empty", place=Place(file), help=_WRITE)
    data = _parse(text, file)
    schema = data.get("schema") if isinstance(data, dict) else None
    if schema != SCHEMA:
        said = f"its `schema` is {_excerpt(schema)}" if schema else "it has no `schema`"
        raise ConfigError(
            f"not a gradscope report: {said}, expected `{SCHEMA}`",
            place=Place(file),
            help=_WRITE,
        )
    report: Report = _read(Report, data, "", file)
    return report


def _parse(text: str, file: str) -> Any:
    """Strict JSON as data, no deeper than a report can be."""
    try:
        data = json.loads(text, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        lines = text.split("\n")
        line = lines[min(error.lineno, len(lines)) - 1]
        # A report on one line can be megabytes long: a caret under it would help nobody; and what
        # does not print could move the terminal's cursor.
        shown = line if len(line) <= 200 and line.isprintable() else None
        raise ConfigError(
            f"not JSON: {error.msg}",
            place=Place(file, error.lineno, error.colno, text=shown),
            help=_WRITE,
        ) from None
    except RecursionError:
        raise _too_deep(file) from None
    except ValueError as error:  # a NaN token, or a number of thousands of digits
        raise ConfigError(f"not strict JSON: {error}", place=Place(file)) from None
    level = [data]
    for _ in range(MAX_DEPTH):
        level = [inner for item in level for inner in _inside(item)]
        if not level:
            return data
    raise _too_deep(file)


def _inside(item: Any) -> Iterable[Any]:
    if isinstance(item, dict):
        return item.values()
    return item if isinstance(item, list) else ()


def _too_deep(file: str) -> ConfigError:
    return ConfigError("the JSON nests too deeply for a report", place=Place(file))


def _no_constant(token: str) -> Any:
    raise ValueError(f"`{token}` is no JSON number")


def load(path: Path) -> Report:
    """Read a saved report.

    Raises:
        ConfigError: the file is missing, unreadable or no report.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(f"there is no file `{path}`", help=_WRITE) from None
    except UnicodeDecodeError:
        raise ConfigError(
            "not JSON: it is not UTF-8 text", place=Place(str(path)), help=_WRITE
        ) from None
    except OSError as error:
        raise ConfigError(f"cannot read `{path}`: {error.strerror or error}", help=_WRITE) from None
    return loads(text, file=str(path))


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
    if right:
        return
    raise ConfigError(
        f"expected {wanted}, found {_excerpt(data)}", place=Place(file, key=where or None)
    )


def _excerpt(data: Any) -> str:
    found = json.dumps(data)
    return found if len(found) <= 40 else found[:39] + "…"
