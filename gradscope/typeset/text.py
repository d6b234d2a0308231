"""Makes text safe to print or to write, and breaks it at readable places."""

from __future__ import annotations

import csv
import re
import unicodedata
from collections.abc import Iterable, Sequence
from html import escape
from io import StringIO

from rich.cells import cell_len

#: Control, format (bidirectional overrides, zero-width), surrogate, line and paragraph separators:
#: any of them would let a layer's name move the cursor or pass for another.
_UNPRINTABLE = {"Cc", "Cf", "Cs", "Zl", "Zp"}


def plain(text: str) -> str:
    """Return ``text`` on one line, with unprintable characters as escapes."""
    if text.isprintable():
        return text
    return "".join(_escape(c) if unicodedata.category(c) in _UNPRINTABLE else c for c in text)


def markup(text: str) -> str:
    """Return text for HTML and SVG, with unprintable characters as escapes."""
    return escape(plain(text), quote=True)


def _escape(character: str) -> str:
    named = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(character)
    code = ord(character)
    return named or (
        f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"
    )


def printable_json(text: str) -> str:
    """Return JSON text with unprintable characters as JSON escapes."""
    return re.sub(r"[^\x00-\x7e]", lambda found: _json_escape(found[0]), text)


def _json_escape(character: str) -> str:
    if character.isprintable() or unicodedata.category(character) not in _UNPRINTABLE:
        return character
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2))


def natural(text: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key that puts ``layer2`` before ``layer10``."""
    # isdecimal and the length: "²" has no int(), and int() refuses to read thousands of digits.
    parts = re.split(r"(\d{1,18})", text)
    return tuple((0, int(p), "") if p.isdecimal() else (1, 0, p) for p in parts)


def break_name(name: str, width: int) -> list[str]:
    """Break a dotted name into as many lines as ``width`` needs, only after dots."""
    if cell_len(name) <= width:
        return [name]
    return pack(re.findall(r"[^.]*\.+|[^.]+$", name), width, indent="  ")


def break_words(text: str, width: int | None, *, indent: str = "") -> list[str]:
    """Break prose into as many lines as ``width`` needs, at spaces."""
    if width is None:
        return [text]
    words = text.split(" ")
    spaced = [f"{word} " for word in words[:-1]] + words[-1:]
    return [line.rstrip() for line in pack(spaced, width, indent=indent)]


def pack(pieces: Sequence[str], width: int, *, indent: str = "") -> list[str]:
    """Pack pieces into lines of at most ``width`` cells; a wider piece gets its own line."""
    lines = [""]
    for piece in pieces:
        # A blank at a line's end takes no room.
        fits = cell_len(lines[-1]) + cell_len(piece.rstrip()) <= width
        if fits or not lines[-1].strip():
            lines[-1] += piece
        else:
            lines.append(indent + piece)
    return lines


def join(parts: Iterable[str], width: int | None, *, indent: str = "") -> list[str]:
    """Join facts with `` · ``, on as many lines as ``width`` needs."""
    facts = list(parts)
    if width is None:
        return [" · ".join(facts)]
    lines: list[str] = []
    for fact in facts:
        longer = f"{lines[-1]} · {fact}" if lines else fact
        if lines and cell_len(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(indent + fact if lines else fact)
    return [piece for line in lines for piece in break_words(line, width, indent=indent + "  ")]


Field = str | int | float | bool | None
#: A spreadsheet takes text for a formula that begins with one of these.
_FORMULA = ("=", "+", "-", "@")


def csv_field(value: Field) -> str:
    """Return the field's text, before any quotes."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        text = plain(value)
        return f"'{text}" if text.startswith(_FORMULA) else text
    return repr(value)


def csv_table(header: Sequence[str], rows: Iterable[Sequence[Field]]) -> str:
    """Write a table by RFC 4180. Floats have every digit; JSON keeps names exactly."""
    out = StringIO()
    writer = csv.writer(out)
    writer.writerow(header)
    writer.writerows(map(csv_field, row) for row in rows)
    return out.getvalue()
