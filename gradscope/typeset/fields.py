"""A value as a field of a CSV file: every digit, nothing that moves a cursor or runs."""

from __future__ import annotations

from gradscope.typeset.text import plain

#: A spreadsheet takes text for a formula that begins with one of these.
_FORMULA = ("=", "+", "-", "@")


def csv_field(value: str | float | bool | None) -> str:
    """The field, before the quotes that it may need."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        text = plain(value)
        return f"'{text}" if text.startswith(_FORMULA) else text
    return repr(value)
