"""Writes records as strict JSON, and reads them; reading checks every field."""

from __future__ import annotations

import gc
import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from gradscope.errors import ConfigError, Place
from gradscope.output_files import check_readable
from gradscope.records.answers import WhyReport
from gradscope.records.data import excerpt, from_data, to_data
from gradscope.records.diff import DiffReport
from gradscope.records.graph import AutogradGraph, faults
from gradscope.records.report import CheckReport, Report
from gradscope.references import data_as_written
from gradscope.typeset.text import printable_json

#: Title of a saved record, the command that writes one, and the command that shows it.
_WORDS: dict[type, tuple[str, str, str]] = {
    Report: ("report", "write a report with `gradscope inspect … -o report.json`", "show"),
    CheckReport: ("check", "write a check with `gradscope check … -o check.json`", "show"),
    AutogradGraph: ("graph", "write a graph with `gradscope graph … -o graph.json`", "graph"),
    DiffReport: ("comparison", "write one with `gradscope diff … -o diff.json`", "show"),
    WhyReport: ("set of answers", "write answers with `gradscope why … -o why.json`", "show"),
}
#: A record names its schema first.
_SCHEMA = r'\s*\{\s*"schema"\s*:\s*"([^"]*)"'
#: Records that ``show`` can show from a file.
Shown = Report | CheckReport | WhyReport | DiffReport
_SHOWN = (Report, CheckReport, WhyReport, DiffReport)
_Record = TypeVar("_Record", Report, CheckReport, AutogradGraph, WhyReport, DiffReport)


class _Document(Protocol):
    """A record that is a file: it has a schema, and says how the run ended."""

    @property
    def schema(self) -> str: ...
    @property
    def status(self) -> str: ...


def dumps(record: _Document) -> str:
    """Return the record as one JSON document, with keys in the order of the fields."""
    data = to_data(record)
    for part in (data, *data.get("models", ())):
        if "config" in part:
            part["config"] = data_as_written(part["config"])
    data.pop("schema")  # of a record that an older gradscope wrote it may be the older one
    head = {"schema": _schema(type(record)), "status": data.pop("status")}
    text = json.dumps({**head, **data}, indent=1, ensure_ascii=False, allow_nan=False)
    return printable_json(text) + "\n"


def loads(text: str, kind: type[_Record], *, file: str = "report") -> _Record:
    """Read a record that ``dumps`` wrote.

    Raises:
        ConfigError: it is not JSON, not a record of that kind, a field has a wrong type, or a
            graph is impossible.
    """
    word, help, _ = _WORDS[kind]
    if not text.strip():
        raise ConfigError(f"the {word} is empty", place=Place(file), help=help)
    data = _parse(text, file, help)
    expected = _schema(kind)
    schema = data.get("schema") if isinstance(data, dict) else None
    if not _is_of(schema, kind):
        for other, (name, _, command) in _WORDS.items():
            if _is_of(schema, other):
                raise ConfigError(
                    f"not a {word} but a {name}",
                    place=Place(file),
                    help=f"show it with `gradscope {command} {file}`",
                )
        if isinstance(schema, str) and schema.split("/")[0] == expected.split("/")[0]:
            help = f"another version of gradscope wrote it; with this one, {help}"
        found = f"its `schema` is {excerpt(schema)}" if schema else "it has no `schema`"
        fault = f"not a gradscope {word}: {found}, expected `{expected}`"
        raise ConfigError(fault, place=Place(file), help=help)
    record: _Record = from_data(kind, {**data, "schema": expected}, file=file)
    if isinstance(record, DiffReport) and record.measured == "ends":  # its name in gradscope.diff/1
        return replace(record, measured="outputs")
    if isinstance(record, AutogradGraph):
        for where, message in faults(record):
            raise ConfigError(message, place=Place(file, key=where), help=help)
    return record


def loads_shown(text: str, *, file: str = "report") -> Shown:
    """Read a record for ``show``, of the kind that its schema names.

    Raises:
        ConfigError: as ``loads``.
    """
    found: Shown = loads(text, _kind(text, _SHOWN), file=file)
    return found


def _kind(text: str, kinds: Iterable[type]) -> Any:
    """Return the kind named by a text's schema; a report if it names none."""
    schema = re.match(_SCHEMA, text)
    return next((kind for kind in kinds if schema and _is_of(schema[1], kind)), Report)


def _schema(kind: type) -> Any:
    return next(f.default for f in fields(kind) if f.name == "schema")


def _is_of(schema: object, kind: type) -> bool:
    """Return True for the schema of the kind, in this version or an older one."""
    name, _, newest = _schema(kind).partition("/")
    return schema in [f"{name}/{version}" for version in range(1, int(newest) + 1)]


def _parse(text: str, file: str, help: str) -> Any:
    """Parse strict JSON."""
    try:
        return json.loads(text, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        lines = text.split("\n")
        line = lines[min(error.lineno, len(lines)) - 1]
        # A report on one line can be megabytes long, so a caret below it would not help. Characters
        # that do not print could move the terminal's cursor.
        shown = line if len(line) <= 200 and line.isprintable() else None
        # For a string without an end, the decoder names its beginning.
        cut = error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string")
        end = ": the file ends in the middle, and is incomplete" if cut else ""
        raise ConfigError(
            f"not JSON: {error.msg}{end}",
            place=Place(file, error.lineno, error.colno, text=shown),
            help=help,
        ) from None
    except RecursionError:
        raise ConfigError("the JSON nests too deeply for a report", place=Place(file)) from None
    except ValueError as error:  # a NaN token, or a number of thousands of digits
        raise ConfigError(f"not strict JSON: {error}", place=Place(file)) from None


def _no_constant(token: str) -> Any:
    raise ValueError(f"`{token}` is not a JSON number")


def load(path: Path, kind: type[_Record]) -> _Record:
    """Read a saved record.

    Raises:
        ConfigError: the file is missing, unreadable or another kind of file.
    """
    with collector_paused():
        return loads(_text(path, _WORDS[kind][1]), kind, file=str(path))


def load_any(path: Path) -> Shown | AutogradGraph:
    """Read a saved record of any kind.

    Raises:
        ConfigError: the file is missing, unreadable or not a record.
    """
    with collector_paused():
        text = _text(path, _WORDS[Report][1])
        found: Shown | AutogradGraph = loads(text, _kind(text, _WORDS), file=str(path))
        return found


def load_shown(path: Path) -> Shown:
    """Read a file that ``gradscope show`` can show.

    Raises:
        ConfigError: the file is missing, unreadable or another kind of file.
    """
    with collector_paused():
        return loads_shown(_text(path, _WORDS[Report][1]), file=str(path))


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the garbage collector in the block: new records are not garbage, and a search is
    slow."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _text(path: Path, help: str) -> str:
    try:
        check_readable(path)
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(f"there is no file `{path}`", help=help) from None
    except UnicodeDecodeError:
        fault = "not JSON: it is not UTF-8 text"
        raise ConfigError(fault, place=Place(str(path)), help=help) from None
    except OSError as error:
        raise ConfigError(f"cannot read `{path}`: {error.strerror or error}", help=help) from None
