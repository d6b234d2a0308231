"""Describes texts and values of a config in plain words, and complaints about them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from gradscope.errors import Place, did_you_mean

#: A place shows its line only up to here: a caret beyond it helps no reader.
_WIDEST = 200

_BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")  # where the YAML scanner counts a new line


def visible(text: str) -> str:
    """Return ``text`` with unprintable characters escaped, so that it cannot control a terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _escape(ord(c)) for c in text)


def _escape(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


@dataclass(frozen=True, slots=True)
class Text:
    """A file's lines, or one command-line argument.

    ``number`` is an argument's position among the arguments; a file counts its lines. ``indent`` is
    the number of characters before the YAML in the first line: those of ``key=``.
    """

    name: str
    lines: tuple[str, ...]
    number: int | None = None
    indent: int = 0

    @classmethod
    def of_file(cls, name: str, body: str) -> Text:
        """Make the text of a file."""
        return cls(visible(name), tuple(_BREAK.split(body)))

    @classmethod
    def of_argument(cls, argument: str, number: int, *, indent: int = 0) -> Text:
        """Make the text of the command line's ``number``-th argument, counted from 1."""
        return cls("argument", tuple(_BREAK.split(argument)), number, indent)

    def place(self, line: int, column: int, length: int = 1, key: str | None = None) -> Place:
        """Return the place of ``length`` characters at the YAML's ``line`` and ``column``, from
        0."""
        if line == 0:
            column += self.indent
        full = self.lines[line] if line < len(self.lines) else ""
        length = max(1, min(length, len(full) - column))
        shown = None
        if column + length <= _WIDEST:
            # One character for one: an escape would push the caret away from its word.
            printed = "".join(c if c.isprintable() or c == "\t" else "�" for c in full[:_WIDEST])
            shown = printed + "…" * (len(full) > _WIDEST)
        number = line + 1 if self.number is None else self.number
        return Place(self.name, number, column + 1, key and visible(key), shown, length)


#: The way to a value: mapping keys and list indices.
Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Complaint:
    """A problem of the config's data, with its key, but without the line."""

    path: Path
    message: str
    help: str | None = None
    at: Literal["key", "value"] = "value"
    notes: tuple[str, ...] = ()


def dotted(path: Path) -> str:
    """Join ``("backward", "repeats")`` to ``backward.repeats``."""
    return visible(".".join(str(part) for part in path))


def shorten(text: str, width: int = 60) -> str:
    """Return one printable line of ``text``, at most ``width`` characters."""
    text = visible(text.replace("\n", "\\n"))
    return text if len(text) <= width else f"{text[: width - 1]}…"


def describe(value: Any) -> str:
    """Describe a value for the "found …" part of an error."""
    if value is None:
        return "nothing (null)"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, int | float):
        return f"the number {shorten(str(value), 40)}"
    if isinstance(value, str):
        return f'the text "{shorten(value)}"' if value else "an empty text"
    if isinstance(value, Mapping):
        if not value:
            return "an empty mapping"
        names = [f"`{shorten(str(key), 30)}`" for key in list(value)[:3]]
        more = ", …" if len(value) > 3 else ""
        return f"a mapping with the key{'s' * (len(value) > 1)} {', '.join(names)}{more}"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}" if value else "an empty list"
    return f"an object of type {type(value).__name__}"


def either(choices: Iterable[str]) -> str:
    """Join words to ``a, b or c``."""
    *head, last = choices
    return f"{', '.join(head)} or {last}" if head else last


def unknown_key(
    path: Path,
    known: Iterable[str],
    *,
    given: Iterable[str] = (),
    help: str | None = None,
) -> Complaint:
    """Return the complaint about an unknown key. It suggests the closest of the ``known`` keys that
    is not ``given`` yet, else ``help``, else all known keys."""
    known = list(known)
    word = str(path[-1])
    where = f" in `{dotted(path[:-1])}`" if len(path) > 1 else ""
    free = [key for key in known if key not in given]
    remedy = did_you_mean(word, free) or did_you_mean(word.lower(), free) or help
    if remedy is None:
        remedy = f"the keys {'here ' * bool(where)}are {', '.join(known)}"
    return Complaint(path, f"unknown key `{shorten(word)}`{where}", remedy, "key")
