"""Apache Parquet: the same table as csv, with null where a row has no such number."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

from gradscope.runfile.exports.csv import COLUMNS, COUNTS, TEXTS, rows
from gradscope.runfile.reader import RunFile

packages = ("pyarrow",)
folder = None

#: Rows that are in memory at once.
_ROWS = 50_000


def write(run: RunFile, path: Path) -> None:
    """Fill the file."""
    import pyarrow as pa
    from pyarrow import parquet

    types = {
        **dict.fromkeys(COLUMNS, pa.float64()),
        **dict.fromkeys(COUNTS, pa.int64()),
        **dict.fromkeys(TEXTS, pa.string()),
    }
    schema = pa.schema([(name, types[name]) for name in COLUMNS])
    with parquet.ParquetWriter(path, schema) as writer:
        for some in _chunks(rows(run)):
            columns = [
                pa.array(column, type=types[name])
                for name, column in zip(COLUMNS, zip(*some, strict=True), strict=True)
            ]
            writer.write_table(pa.Table.from_arrays(columns, schema=schema))


def _chunks(found: Iterable[Any]) -> Iterable[list[Any]]:
    iterator = iter(found)
    while some := list(islice(iterator, _ROWS)):
        yield some
