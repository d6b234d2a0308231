"""The text of a config, line by line: turns a line and a column into a printable place."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gradscope.errors import Place

#: A place shows its line only up to here: nobody reads a caret beyond it.
_WIDEST = 200

_BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")  # where the YAML scanner counts a new line


def visible(text: str) -> str:
    """``text`` with escapes for what does not print: it can neither drive a terminal nor hide."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _escape(ord(c)) for c in text)


def _escape(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


@dataclass(frozen=True, slots=True)
class Text:
    """A file's lines, or one command-line argument.

    ``number`` is an argument's position among the arguments (a file counts its own lines);
    ``indent`` are the characters of its first line that are before the YAML: ``key=``.
    """

    name: str
    lines: tuple[str, ...]
    number: int | None = None
    indent: int = 0

    @classmethod
    def of_file(cls, name: str, body: str) -> Text:
        """The text of a file."""
        return cls(visible(name), tuple(_BREAK.split(body)))

    @classmethod
    def of_argument(cls, argument: str, number: int, *, indent: int = 0) -> Text:
        """The text of the command line's ``number``-th argument, counted from 1."""
        return cls("argument", tuple(_BREAK.split(argument)), number, indent)

    def place(self, line: int, column: int, length: int = 1, key: str | None = None) -> Place:
        """The place of ``length`` characters at the YAML's ``line`` and ``column``, from 0."""
        if line == 0:
            column += self.indent
        integer = self.lines[line] if line < len(self.lines) else ""
        length = max(1, min(length, len(integer) - column))
        shown = None
        if column + length <= _WIDEST:
            # One character for one: an escape would push the caret away from its word.
            printed = "".join(c if c.isprintable() or c == "\t" else "�" for c in integer[:_WIDEST])
            shown = printed + "…" * (len(integer) > _WIDEST)
        number = line + 1 if self.number is None else self.number
        return Place(self.name, number, column + 1, key and visible(key), shown, length)
