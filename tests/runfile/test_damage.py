"""Files that are no run, or a damaged one: a clear sentence, whatever the bytes."""

from __future__ import annotations

import contextlib
import random
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from gradscope.errors import ConfigError, GradscopeError
from gradscope.runfile import schema
from gradscope.runfile.reader import RunFile
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
    step,
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with every record."""
    writer = RunWriter(tmp_path_factory.mktemp("whole") / "run.db", RUN)
    writer.add(*MODELS, *EVENTS, *FINDINGS, *STEPS, *NORM_NAMES, *NORMS)
    for number in range(6, 200):
        wanted = number % 10 == 0
        writer.add(step(number, sampled=wanted), *[sample(number, calls=6)] * wanted)
    writer.finish(ENDED)
    return writer.path


def read_all(path: Path) -> None:
    """Ask everything that can be asked."""
    with RunFile.open(path) as file:
        assert file.run.schema
        assert file.models is not None
        assert file.events is not None
        assert file.findings is not None
        assert file.steps() is not None
        for number in file.sampled:
            assert file.sample(number) is not None
        assert file.call_series() is not None
        assert file.parameter_series() is not None
        assert file.norm_series() is not None


def nothing(path: Path) -> None:
    """There is no such file."""


def sql(*statements: str) -> Callable[[Path], None]:
    """A SQLite file by these statements."""

    def make(path: Path) -> None:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
            for statement in statements:
                connection.execute(statement)

    return make


NO_RUNS: dict[str, tuple[Callable[[Path], object], str]] = {
    "nothing": (nothing, "there is no run"),
    "an empty file": (lambda path: path.touch(), "is empty"),
    "a text": (lambda path: path.write_text("hello", encoding="utf-8"), "not a SQLite file"),
    "a report": (lambda path: path.write_text('{"schema": ""}'), "not a SQLite file"),
    "an empty folder": (lambda path: path.mkdir(), "no run in the folder"),
    "another program's": (sql("CREATE TABLE t (a)"), "not a run of gradscope"),
    "another program's of the same names": (
        sql(*(f"CREATE TABLE {name} (schema)" for name in ("run", "step", "sample"))),
        "not a run of gradscope",
    ),
    "a run that was killed as it began": (
        sql("CREATE TABLE t (a)", "DROP TABLE t"),
        "the run was killed at its start",
    ),
    "a newer one": (
        sql(
            "CREATE TABLE everything (a)",
            f"PRAGMA application_id = {schema.APPLICATION}",
            "PRAGMA user_version = 7",
        ),
        "its schema is 7, this one reads 2",
    ),
    "only its head": (lambda path: path.write_bytes(b"SQLite format 3\0"), "cannot read the run"),
}


@pytest.mark.parametrize(("make", "said"), NO_RUNS.values(), ids=NO_RUNS)
def test_what_is_no_run_is_refused(make, said, tmp_path):
    path = tmp_path / "run.db"
    make(path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ConfigError, match=said) as caught:
        RunFile.open(path)
    assert str(path) in str(caught.value)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_folder_of_runs_names_the_latest(tmp_path):
    for name in ("a.db", "b.db"):
        RunWriter(tmp_path / name, RUN).finish(RUN)
    with pytest.raises(ConfigError, match="folder of 2 runs") as caught:
        RunFile.open(tmp_path)
    assert "b.db" in caught.value.render()


def test_one_rank_that_is_damaged_is_named(tmp_path):
    RunWriter(tmp_path / "rank-0.db", RUN).finish(RUN)
    (tmp_path / "rank-1.db").write_text("x")
    with pytest.raises(ConfigError, match=r"rank-1\.db"):
        RunFile.open(tmp_path)


def test_the_whole_one_is_read(whole):
    read_all(whole)


@pytest.mark.parametrize("seed", range(40))
def test_a_file_cut_short_is_read_or_refused(seed, whole, tmp_path):
    data = whole.read_bytes()
    size = random.Random(seed).randrange(len(data))
    path = tmp_path / "run.db"
    path.write_bytes(data[:size])
    try:
        read_all(path)
    except GradscopeError as error:
        assert str(path) in str(error)
    else:  # the last pages can be empty
        assert size > len(data) // 2


@pytest.mark.parametrize("seed", range(100))
def test_bytes_that_flipped_are_read_or_refused(seed, whole, tmp_path):
    draw = random.Random(seed)
    data = bytearray(whole.read_bytes())
    for _ in range(draw.choice((1, 10, 100, 1000))):
        data[draw.randrange(100 * (seed % 2), len(data))] = draw.randrange(256)
    path = tmp_path / "run.db"
    path.write_bytes(data)
    try:
        read_all(path)
    except GradscopeError as error:
        assert str(path) in str(error)


CELLS = {
    f"{table}.{column}": (table, column)
    for table, columns in {
        "run": ("script", "arguments", "options", "started", "ended", "steps", "notices"),
        "model": ("name", "parameters"),
        "event": ("step", "time", "kind", "details"),
        "finding": ("code", "value", "steps", "origin"),
        "step": ("optimizer", "time", "loss", "losses", "learning_rates", "sampled"),
        "sample": ("step", "record"),
        "call": ("name", "call", "out_norm"),
        "parameter": ("name", "grad_norm"),
    }.items()
    for column in columns
}


@pytest.mark.slow
@pytest.mark.parametrize(("table", "column"), CELLS.values(), ids=CELLS)
@pytest.mark.parametrize(
    "wrong", ["'x'", "NULL", "x'ff00'", "3.5", "'[1, \"a\"]'", "'{}'", "9e999"]
)
def test_a_cell_of_the_wrong_kind_is_read_or_refused(table, column, wrong, whole, tmp_path):
    path = tmp_path / "run.db"
    shutil.copy(whole, path)
    # One row: the type of one cell among many has to be noticed.
    place = f"rowid = (SELECT max(rowid) FROM {table})" if table != "sample" else "step = 10"
    try:
        sql(f"UPDATE {table} SET {column} = {wrong} WHERE {place}")(path)
    except sqlite3.IntegrityError:
        return  # SQLite itself refuses it
    try:
        read_all(path)
    except GradscopeError as error:
        assert str(path) in str(error)


def test_a_run_on_a_disk_that_cannot_be_written_is_read(whole, tmp_path, monkeypatch):
    """As from a DVD: SQLite cannot make the files beside it that it would share with a writer."""
    path = tmp_path / "run.db"
    shutil.copy(whole, path)
    sql("PRAGMA journal_mode = WAL")(path)  # as where somebody read it when it was closed
    connect = sqlite3.connect

    def refuse(address: str, **options: object) -> sqlite3.Connection:
        if "immutable" not in address:
            return connect("file:/nowhere/at/all?mode=ro", **options)  # type: ignore[arg-type]
        return connect(address, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(sqlite3, "connect", refuse)
    read_all(path)
    assert [one.name for one in tmp_path.iterdir()] == ["run.db"]


def test_names_that_an_address_would_misread_are_opened(whole, tmp_path):
    for name in ("a?b=c.db", "a#b.db", "a%20b.db", "模型 é.db"):
        shutil.copy(whole, tmp_path / name)
        read_all(tmp_path / name)
