"""RFC 4180: one table, empty where a row has no such number; every digit of the others."""

from __future__ import annotations

import csv
from pathlib import Path

from gradscope.runfile.exports._table import COLUMNS, rows
from gradscope.runfile.reader import RunFile
from gradscope.typeset.fields import csv_field

packages = ()
folder = None


def write(run: RunFile, path: Path) -> None:
    """Fill the file."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        writer.writerows(map(csv_field, row) for row in rows(run))
