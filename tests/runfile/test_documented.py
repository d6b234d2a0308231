"""The schema as docs/run-file.md shows it: its tables, and its SQL, which finds something."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

import pytest
from pages import blocks

from gradscope.runfile.writer import RunWriter
from runfile.made import (
    ENDED,
    EVENTS,
    FINDINGS,
    MODELS,
    NORM_NAMES,
    NORMS,
    RUN,
    STEPS,
    sample,
)

PAGE = (Path(__file__).parents[2] / "docs" / "run-file.md").read_text(encoding="utf-8")
SQL = blocks("sql", PAGE)


@pytest.fixture
def recorded(tmp_path: Path) -> sqlite3.Connection:
    """A run with every record, as any program that knows SQLite sees it."""
    writer = RunWriter(tmp_path / "run.db", RUN)
    writer.add(*MODELS, *STEPS, *NORM_NAMES, *NORMS, *EVENTS, *FINDINGS, sample(1), sample(3))
    writer.finish(ENDED)
    return sqlite3.connect(writer.path)


def test_every_table_and_column_is_listed(recorded):
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| (.+) \|$", PAGE, re.MULTILINE)
    listed = {table: re.findall(r"`(\w+)`", columns) for table, columns in rows}
    tables = recorded.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
    held = {
        table: [row[1] for row in recorded.execute(f"PRAGMA table_info({table})")]
        for (table,) in tables
    }
    assert {table: sorted(columns) for table, columns in listed.items()} == {
        table: sorted(columns) for table, columns in held.items()
    }
    recorded.close()


@pytest.mark.parametrize("query", SQL, ids=lambda query: query.split("\n")[0])
def test_the_sql_finds_something(query, recorded):
    found = recorded.execute(query).fetchall()
    assert found
    assert all(cell is not None for cell in found[0])
    recorded.close()


def test_there_is_sql():
    assert len(SQL) >= 4
