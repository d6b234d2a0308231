"""A report as RFC 4180: one row for each call, direction and path, or for each parameter.

Floats have every digit. Text that a spreadsheet would run as a formula gets a leading apostrophe,
and characters that do not print are written as escapes; JSON keeps names exactly.
"""

from __future__ import annotations

import csv
from io import StringIO

from gradscope.records import Report
from gradscope.reporters import _tables
from gradscope.reporters._columns import Scalar
from gradscope.reporters._view import View
from gradscope.typeset.text import plain

suffix = ".csv"


def render(report: Report, view: View) -> str:
    """One table: the calls, unless the view asks for the parameters."""
    header, rows = _tables.records(report, view)
    out = StringIO()
    writer = csv.writer(out)
    writer.writerow(header)
    writer.writerows([_field(value) for value in row] for row in rows)
    return out.getvalue()


def _field(value: Scalar) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        text = plain(value)
        return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text
    return repr(value)
