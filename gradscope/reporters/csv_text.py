"""A table as RFC 4180.

Floats have every digit. Text that a spreadsheet would run as a formula gets a leading apostrophe,
and characters that do not print are written as escapes; JSON keeps names exactly.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from io import StringIO

from gradscope.typeset.text import plain

Field = str | int | float | bool | None


def written(header: Sequence[str], rows: Iterable[Sequence[Field]]) -> str:
    """The header and the rows."""
    out = StringIO()
    writer = csv.writer(out)
    writer.writerow(header)
    writer.writerows([_field(value) for value in row] for row in rows)
    return out.getvalue()


def _field(value: Field) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        text = plain(value)
        return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text
    return repr(value)
