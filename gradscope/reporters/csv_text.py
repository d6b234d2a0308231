"""A table as RFC 4180.

Floats have every digit. Text that a spreadsheet would run as a formula gets a leading apostrophe,
and characters that do not print are written as escapes; JSON keeps names exactly.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from io import StringIO

from gradscope.typeset.fields import csv_field

Field = str | int | float | bool | None


def written(header: Sequence[str], rows: Iterable[Sequence[Field]]) -> str:
    """The header and the rows."""
    out = StringIO()
    writer = csv.writer(out)
    writer.writerow(header)
    writer.writerows(map(csv_field, row) for row in rows)
    return out.getvalue()
