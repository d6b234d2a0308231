"""Records ⇄ strict JSON. Reading checks every field: a damaged file is named, not believed."""

from __future__ import annotations

import functools
import json
import math
import re
import sys
import types
import typing
from collections.abc import Iterable
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

from gradscope.errors import ConfigError, Place
from gradscope.records.answers import WhyReport
from gradscope.records.graph import AutogradGraph
from gradscope.records.report import CheckReport, Report
from gradscope.records.saliency import SaliencyReport
from gradscope.records.soundness import faults

#: What a saved record is called, the command that writes one, and the command that shows it.
_WORDS: dict[type, tuple[str, str, str]] = {
    Report: ("report", "write a report with `gradscope inspect … -o report.json`", "show"),
    CheckReport: ("check", "write a check with `gradscope check … -o check.json`", "show"),
    AutogradGraph: ("graph", "write a graph with `gradscope graph … -o graph.json`", "graph"),
    WhyReport: ("set of answers", "write answers with `gradscope why … -o why.json`", "why"),
}
_Record = TypeVar("_Record", Report, CheckReport, AutogradGraph, WhyReport)
#: A report nests 7 deep; only its ``config`` is free to go deeper.
MAX_DEPTH = 100
#: Resolving annotations takes longer than reading the values, and a report has thousands.
_hints = functools.cache(typing.get_type_hints)


def to_data(record: Any) -> Any:
    """A record as dicts, lists, strings, numbers and None; a non-finite number becomes None."""
    if is_dataclass(record) and not isinstance(record, type):
        values = ((f, getattr(record, f.name)) for f in fields(record))
        return {
            f.name: to_data(value)
            for f, value in values
            if not ("sparse" in f.metadata and value == _default(f))
        }
    if isinstance(record, dict):
        return {str(key): to_data(value) for key, value in record.items()}
    if isinstance(record, list | tuple):
        return [to_data(item) for item in record]
    if isinstance(record, float) and not math.isfinite(record):
        return None
    return record


def _default(one: Field[Any]) -> Any:
    return one.default if one.default_factory is MISSING else one.default_factory()


def dumps(record: Report | CheckReport | AutogradGraph | SaliencyReport | WhyReport) -> str:
    """The record as one JSON document, keys in the order of the records."""
    data = to_data(record)
    head = {"schema": data.pop("schema"), "status": data.pop("status")}
    return json.dumps({**head, **data}, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def loads(text: str, kind: type[_Record], *, file: str = "report") -> _Record:
    """The record that ``dumps`` wrote.

    Raises:
        ConfigError: not JSON, not a record of that kind, a field of the wrong type, or a graph that
            no backward could have left; says which.
    """
    word, help, _ = _WORDS[kind]
    if not text.strip():
        raise ConfigError(f"the {word} is empty", place=Place(file), help=help)
    data = _parse(text, file, help)
    expected = _schema(kind)
    schema = data.get("schema") if isinstance(data, dict) else None
    if schema != expected:
        for other, (name, _, command) in _WORDS.items():
            if schema == _schema(other):
                raise ConfigError(
                    f"not a {word} but a {name}",
                    place=Place(file),
                    help=f"show it with `gradscope {command} {file}`",
                )
        found = f"its `schema` is {_excerpt(schema)}" if schema else "it has no `schema`"
        fault = f"not a gradscope {word}: {found}, expected `{expected}`"
        raise ConfigError(fault, place=Place(file), help=help)
    record: _Record = _read(kind, data, "", file)
    if isinstance(record, AutogradGraph):
        for where, message in faults(record):
            raise ConfigError(message, place=Place(file, key=where), help=help)
    return record


def loads_shown(text: str, *, file: str = "report") -> Report | CheckReport:
    """The report or the check that ``dumps`` wrote, as its schema says.

    Raises:
        ConfigError: as ``loads``.
    """
    # A check names its schema in the first line, as each record does; whatever else is no report.
    schema = re.match(r'\s*\{\s*"schema"\s*:\s*"([^"]*)"', text)
    if schema is not None and schema[1] == _schema(CheckReport):
        return loads(text, CheckReport, file=file)
    return loads(text, Report, file=file)


def _schema(kind: type) -> Any:
    return next(f.default for f in fields(kind) if f.name == "schema")


def _parse(text: str, file: str, help: str) -> Any:
    """Strict JSON as data, no deeper than a record can be."""
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
            help=help,
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


def load(path: Path, kind: type[_Record]) -> _Record:
    """Read a saved record.

    Raises:
        ConfigError: the file is missing, unreadable or no such record.
    """
    return loads(_text(path, _WORDS[kind][1]), kind, file=str(path))


def load_shown(path: Path) -> Report | CheckReport:
    """Read a saved report or check.

    Raises:
        ConfigError: the file is missing, unreadable or neither.
    """
    return loads_shown(_text(path, _WORDS[Report][1]), file=str(path))


def _text(path: Path, help: str) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(f"there is no file `{path}`", help=help) from None
    except UnicodeDecodeError:
        fault = "not JSON: it is not UTF-8 text"
        raise ConfigError(fault, place=Place(str(path)), help=help) from None
    except OSError as error:
        raise ConfigError(f"cannot read `{path}`: {error.strerror or error}", help=help) from None


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
        fault = f"expected {wanted}, found {_excerpt(data)}"
        raise ConfigError(fault, place=Place(file, key=where or None))


def _excerpt(data: Any) -> str:
    found = json.dumps(data)
    return found if len(found) <= 40 else found[:39] + "…"
