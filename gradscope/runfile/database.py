"""Creates the SQLite file and writes to it, one transaction after another."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from gradscope.errors import OptionError
from gradscope.records.training import (
    StepSample,
    TrainingEvent,
    TrainingFinding,
    TrainingRecord,
    TrainingRun,
    TrainingStep,
)
from gradscope.runfile import schema, thinning
from gradscope.runfile import table_rows as rows

#: Time to wait for another program's lock on the file.
_BUSY_SECONDS = 10
#: The journal beside the file is cut back to this once its contents are in the file.
_JOURNAL_BYTES = 16 << 20

#: The kind of the event that says so.
SAMPLES_LEFT_OUT = "samples-left-out"

#: Tables whose rows can be written again.
_REPLACED = ("model", "step", "norm_names", "sample", "fingerprint", "mesh", "placement")
_CALL = ("step", "model", "name", "call", "type", *schema.CALL_COLUMNS)
_PARAMETER = ("step", "model", "name", *schema.PARAMETER_COLUMNS)


def create(path: Path, run: TrainingRun) -> sqlite3.Connection:
    """Create a new file with the tables and the run's row. Its folder is created if the parent
    folder exists.

    Raises:
        OptionError: the file exists already, or cannot be written.
    """
    try:
        path.parent.mkdir(exist_ok=True)
        # SQLite would take a file that is there: only the one who made it may write.
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666))
    except FileExistsError:
        raise OptionError(
            f"`{path}` exists", help="gradscope never overwrites a run: give another file"
        ) from None
    except OSError as error:
        raise _unwritable(path, error.strerror or str(error)) from None
    try:
        return _prepared(path, run)
    except sqlite3.Error as error:
        for left in (path, *_journals(path)):
            left.unlink(missing_ok=True)
        raise _unwritable(path, str(error)) from None


def _prepared(path: Path, run: TrainingRun) -> sqlite3.Connection:
    # The thread that uses it changes where the process forks; never two at once.
    connection = sqlite3.connect(
        path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
    )
    try:
        # Read while written. On a folder that cannot share memory (some network drives) SQLite
        # stays with its older journal: as safe, but readers and the writer wait for each other.
        connection.execute("PRAGMA journal_mode = WAL")
        # Nothing is lost with the process; with the machine's power perhaps the last seconds.
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(f"PRAGMA journal_size_limit = {_JOURNAL_BYTES}")
        with transaction(connection):
            for statement in schema.TABLES:
                connection.execute(statement)
            _insert(connection, "run", rows.columns(TrainingRun), [rows.plain_row(run)])
            connection.execute(f"PRAGMA application_id = {schema.APPLICATION}")
            connection.execute(f"PRAGMA user_version = {schema.VERSION}")
    except BaseException:
        connection.close()
        raise
    return connection


def _journals(path: Path) -> Iterator[Path]:
    return (path.with_name(path.name + end) for end in ("-wal", "-shm", "-journal"))


def _unwritable(path: Path, reason: str) -> OptionError:
    return OptionError(
        f"cannot write the run to `{path}`: {reason}", help="name another place with `-o`"
    )


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Write all of a transaction, or nothing."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


class Batch:
    """Rows of records, made outside the transaction that writes them."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, tuple[str, ...]], list[rows.Row]] = {}
        self._withdrawn: list[rows.Row] = []  # keys of findings that no longer hold
        self._run: rows.Row | None = None

    def add(self, record: TrainingRecord | TrainingRun) -> None:
        """Make the rows of a record."""
        match record:
            case TrainingStep():
                self._append("step", rows.STEP, rows.step_row(record))
            case StepSample():
                self._append("sample", rows.SAMPLE, rows.sample_row(record))
                self._extend("call", _CALL, schema.call_rows(record))
                self._extend("parameter", _PARAMETER, schema.parameter_rows(record))
                self._extend("transformer", schema.TRANSFORMER, schema.transformer_rows(record))
            case TrainingFinding(steps=()):
                self._withdraw(rows.finding_row(record)[0])
            case TrainingFinding():
                self._append("finding", rows.FINDING, rows.finding_row(record))
            case TrainingRun():
                self._run = rows.plain_row(record)
            case _:
                kind = type(record)
                self._append(rows.PLAIN[kind], rows.columns(kind), rows.plain_row(record))

    def _withdraw(self, key: rows.Value) -> None:
        """Remove a finding, whether it is written already or still waiting."""
        waiting = self._rows.get(("finding", rows.FINDING), [])
        waiting[:] = [row for row in waiting if row[0] != key]
        self._withdrawn.append((key,))

    def _append(self, table: str, columns: tuple[str, ...], row: rows.Row) -> None:
        self._rows.setdefault((table, columns), []).append(row)

    def _extend(self, table: str, columns: tuple[str, ...], more: Iterable[rows.Row]) -> None:
        self._rows.setdefault((table, columns), []).extend(more)

    def write(self, connection: sqlite3.Connection) -> None:
        """Write all rows; the caller has begun the transaction."""
        connection.executemany("DELETE FROM finding WHERE key = ?", self._withdrawn)
        for (table, columns), found in self._rows.items():
            _insert(connection, table, columns, found)
        sampled = [row[:1] for row in self._rows.get(("sample", rows.SAMPLE), ())]
        connection.executemany("UPDATE step SET sampled = 1 WHERE step = ?", sampled)
        if self._run is not None:
            connection.execute("DELETE FROM run")
            _insert(connection, "run", rows.columns(TrainingRun), [self._run])


def _insert(
    connection: sqlite3.Connection, table: str, columns: Sequence[str], found: Iterable[rows.Row]
) -> None:
    marks = ", ".join("?" * len(columns))
    again = ""
    if table == "finding":  # keeps its place, with the newest figures
        new = ", ".join(f"{name} = excluded.{name}" for name in columns if name != "key")
        again = f" ON CONFLICT (key) DO UPDATE SET {new}"
    verb = "INSERT OR REPLACE" if table in _REPLACED else "INSERT"
    connection.executemany(
        f"{verb} INTO {table} ({', '.join(columns)}) VALUES ({marks}){again}", found
    )


def write_dropped(
    connection: sqlite3.Connection, seconds: float, dropped: tuple[int, int, int]
) -> None:
    """Write one event on dropped samples: their number, the first and the last step."""
    count, first, last = dropped
    message = f"{count} samples were dropped: the disk is too slow"
    details = {"samples": count, "first": first, "last": last}
    event = TrainingEvent(last, seconds, SAMPLES_LEFT_OUT, message, details)
    connection.execute("DELETE FROM event WHERE kind = ?", (SAMPLES_LEFT_OUT,))
    _insert(connection, "event", rows.columns(TrainingEvent), [rows.plain_row(event)])


def thin(connection: sqlite3.Connection, kept: thinning.Kept) -> None:
    """Delete the surplus samples, steps and norms; their pages are reused."""
    numbers = [(step,) for step in kept.drop_samples()]
    for table in ("sample", "call", "parameter", "transformer", "fingerprint"):
        connection.executemany(f"DELETE FROM {table} WHERE step = ?", numbers)
    connection.executemany("UPDATE step SET sampled = 0 WHERE step = ?", numbers)
    if kept.rows > kept.most_steps:
        referred = thinning.outermost(sorted(kept.referred), kept.most_steps // 4)
        stay = f"sampled OR step IN ({', '.join(map(str, referred))})"
        kept.rows -= _thin(connection, "step", "step", kept.most_steps, stay)
    for names, until, stride in kept.norms.to_thin():
        gone = connection.execute(
            "DELETE FROM norm WHERE names = ? AND number > ? AND number < ? AND number % ? != 0",
            (names, thinning.FIRST, until, stride),
        )
        kept.norms.thinned(names, gone.rowcount)
    if kept.events > kept.most_events:
        kept.events -= _thin(connection, "event", "id", kept.most_events, "0")


def _thin(connection: sqlite3.Connection, table: str, number: str, most: int, stay: str) -> int:
    """Delete every second one of the older rows, repeatedly; return their number."""
    ((last,),) = connection.execute(f"SELECT max({number}) FROM {table}")
    until, stride = thinning.stride(last, most)
    where = f"{number} > {thinning.FIRST} AND {number} < {until} AND {number} % {stride} != 0"
    return connection.execute(f"DELETE FROM {table} WHERE {where} AND NOT ({stay})").rowcount


def copy(run: Path, target: Path) -> None:
    """Copy a run file, journal included, to an empty file.

    Raises:
        sqlite3.Error: one cannot be read, or the other be written.
    """
    with (
        contextlib.closing(sqlite3.connect(run)) as held,
        contextlib.closing(sqlite3.connect(target)) as copied,
    ):
        held.backup(copied)
        copied.execute("PRAGMA journal_mode = DELETE")


def close(connection: sqlite3.Connection) -> None:
    """Close the file so that it is one file, and can be read from a folder that is read-only."""
    with contextlib.suppress(sqlite3.OperationalError):  # a reader has it open: the journal stays
        connection.execute("PRAGMA busy_timeout = 200")
        connection.execute("PRAGMA journal_mode = DELETE")
    connection.close()


def give_up(connection: sqlite3.Connection) -> None:
    """Close a connection that cannot be written any more."""
    with contextlib.suppress(sqlite3.Error):
        connection.close()
