"""Hides values from ``${env:NAME}`` in a config, because they may be secrets.

Errors and saved configs show the reference instead of the value. The process remembers all values
that it has read, because an error may come much later.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

#: Shorter values are words that anybody writes: ``cpu``, ``10``.
_SHORTEST: Final = 4
#: From here on a value is searched inside of words too, and cut off before an ellipsis.
_LONG: Final = 8

_references: dict[str, str] = {}


def note(value: str, written: str) -> None:
    """Note the reference of a value from the environment."""
    if len(value) >= _SHORTEST:
        _references[value] = written


def forget() -> None:
    """Forget all of them."""
    _references.clear()


def as_written(text: str) -> str:
    """Return a text with each value replaced by its reference, also if the value was cut or
    escaped."""
    for value in sorted(_references, key=len, reverse=True):
        for form in _forms(value):
            text = _replaced(text, form, _references[value])
    return text


def data_as_written(data: Any) -> Any:
    """Apply ``as_written`` to every text in plain data, but not to keys."""
    if not _references:
        return data
    if isinstance(data, str):
        return as_written(data)
    if isinstance(data, Mapping):
        return {key: data_as_written(part) for key, part in data.items()}
    return [data_as_written(part) for part in data] if isinstance(data, (list, tuple)) else data


def _forms(value: str) -> list[str]:
    """Yield the forms in which messages may print a value: unchanged, escaped, or a line of it."""
    forms = [value, repr(value)[1:-1], ascii(value)[1:-1], json.dumps(value)[1:-1]]
    lines = [line for line in value.splitlines() if len(line) >= _LONG]
    return list(dict.fromkeys([*forms, *lines]))


def _replaced(text: str, value: str, written: str) -> str:
    if len(value) < _LONG:
        return re.sub(rf"(?<!\w){re.escape(value)}(?!\w)", lambda match: written, text)
    text = text.replace(value, written)
    # Messages cut long values.
    for end in [match.start() for match in re.finditer("…", text)][::-1]:
        length = next((n for n in range(len(value), 3, -1) if text.endswith(value[:n], 0, end)), 0)
        text = text[: end - length] + (written + text[end + 1 :] if length else text[end:])
    return text
