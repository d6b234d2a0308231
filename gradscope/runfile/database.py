"""Creates the SQLite file and writes to it, one transaction after another."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from gradscope.errors import OptionError
from gradscope.records.tensors import ParameterNorms
from gradscope.records.training import (
    StepSample,
    TrainingEvent,
    TrainingFinding,
    TrainingRecord,
    TrainingRun,
    TrainingStep,
)
from gradscope.runfile import schema
from gradscope.runfile.schema import LEAST_NORMS, MOST_EVENTS, MOST_NORM_BYTES, MOST_STEPS

#: Time to wait for another program's lock on the file.
_BUSY_SECONDS = 10
#: The journal beside the file is cut back to this size once its contents are in the file.
_JOURNAL_BYTES = 16 << 20

#: The kind of the event on dropped samples.
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
        # SQLite would open an existing file; only the process that created the file may write to
        # it.
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
        for end in ("", "-wal", "-shm", "-journal"):
            path.with_name(path.name + end).unlink(missing_ok=True)
        raise _unwritable(path, str(error)) from None


def _prepared(path: Path, run: TrainingRun) -> sqlite3.Connection:
    # After a fork, another thread uses the connection, but never two at once.
    connection = sqlite3.connect(
        path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
    )
    try:
        # This mode allows reads during writes. If the folder cannot share memory (some network
        # drives), SQLite keeps its older journal. It is as safe, but readers and the writer wait
        # for each other.
        connection.execute("PRAGMA journal_mode = WAL")
        # If the process dies, nothing is lost; if the machine loses power, the last seconds may be.
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(f"PRAGMA journal_size_limit = {_JOURNAL_BYTES}")
        with transaction(connection):
            for statement in schema.TABLES:
                connection.execute(statement)
            _insert(connection, "run", schema.columns(TrainingRun), [schema.plain_row(run)])
            connection.execute(f"PRAGMA application_id = {schema.APPLICATION}")
            connection.execute(f"PRAGMA user_version = {schema.VERSION}")
    except BaseException:
        connection.close()
        raise
    return connection


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
        self._rows: dict[tuple[str, tuple[str, ...]], list[schema.Row]] = {}
        self._withdrawn: list[schema.Row] = []  # keys of findings that no longer hold
        self._run: schema.Row | None = None

    def add(self, record: TrainingRecord | TrainingRun) -> None:
        """Make the rows of a record."""
        match record:
            case TrainingStep():
                self._append("step", schema.STEP, schema.step_row(record))
            case StepSample():
                self._append("sample", schema.SAMPLE, schema.sample_row(record))
                self._extend("call", _CALL, schema.call_rows(record))
                self._extend("parameter", _PARAMETER, schema.parameter_rows(record))
                self._extend("transformer", schema.TRANSFORMER, schema.transformer_rows(record))
            case TrainingFinding(steps=()):
                self._withdraw(schema.finding_row(record)[0])
            case TrainingFinding():
                self._append("finding", schema.FINDING, schema.finding_row(record))
            case TrainingRun():
                self._run = schema.plain_row(record)
            case _:
                kind = type(record)
                self._append(schema.PLAIN[kind], schema.columns(kind), schema.plain_row(record))

    def _withdraw(self, key: schema.Value) -> None:
        """Remove a finding, whether it is written already or still waiting."""
        waiting = self._rows.get(("finding", schema.FINDING), [])
        waiting[:] = [row for row in waiting if row[0] != key]
        self._withdrawn.append((key,))

    def _append(self, table: str, columns: tuple[str, ...], row: schema.Row) -> None:
        self._rows.setdefault((table, columns), []).append(row)

    def _extend(self, table: str, columns: tuple[str, ...], more: Iterable[schema.Row]) -> None:
        self._rows.setdefault((table, columns), []).extend(more)

    def write(self, connection: sqlite3.Connection) -> None:
        """Write all rows; the caller has begun the transaction."""
        connection.executemany("DELETE FROM finding WHERE key = ?", self._withdrawn)
        for (table, columns), found in self._rows.items():
            _insert(connection, table, columns, found)
        sampled = [row[:1] for row in self._rows.get(("sample", schema.SAMPLE), ())]
        connection.executemany("UPDATE step SET sampled = 1 WHERE step = ?", sampled)
        if self._run is not None:
            connection.execute("DELETE FROM run")
            _insert(connection, "run", schema.columns(TrainingRun), [self._run])


def _insert(
    connection: sqlite3.Connection, table: str, columns: Sequence[str], found: Iterable[schema.Row]
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
    _insert(connection, "event", schema.columns(TrainingEvent), [schema.plain_row(event)])


def thin(connection: sqlite3.Connection, kept: Kept) -> None:
    """Delete the surplus samples, steps and norms; their pages are reused."""
    numbers = [(step,) for step in kept.drop_samples()]
    for table in ("sample", "call", "parameter", "transformer", "fingerprint"):
        connection.executemany(f"DELETE FROM {table} WHERE step = ?", numbers)
    connection.executemany("UPDATE step SET sampled = 0 WHERE step = ?", numbers)
    if kept.rows > kept.most_steps:
        referred = outermost(sorted(kept.referred), kept.most_steps // 4)
        stay = f"sampled OR step IN ({', '.join(map(str, referred))})"
        kept.rows -= _thin(connection, "step", "step", kept.most_steps, stay)
    for names, until, stride in kept.norms.to_thin():
        gone = connection.execute(
            "DELETE FROM norm WHERE names = ? AND number > ? AND number < ? AND number % ? != 0",
            (names, FIRST, until, stride),
        )
        kept.norms.thinned(names, gone.rowcount)
    if kept.events > kept.most_events:
        kept.events -= _thin(connection, "event", "id", kept.most_events, "0")


def _thin(connection: sqlite3.Connection, table: str, number: str, most: int, stay: str) -> int:
    """Delete every second one of the older rows, repeatedly; return their number."""
    ((last,),) = connection.execute(f"SELECT max({number}) FROM {table}")
    until, step = stride(last, most)
    where = f"{number} > {FIRST} AND {number} < {until} AND {number} % {step} != 0"
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


#: The first samples always stay.
FIRST = 3


def samples_to_drop(counted: Mapping[int, int], referred: Collection[int], keep: int) -> list[int]:
    """Return the steps whose samples are dropped: none, or so many that about three quarters of
    ``keep`` are left.

    Three groups stay: the first three; the last half of ``keep``; and up to a quarter of ``keep``
    that findings or events refer to, from both ends. Of the others, every second one is dropped,
    repeatedly. They are counted in the order of sampling, so the remaining ones are spread evenly.

    Args:
        counted: each sampled step, with the number of samples before it.
        referred: the steps that findings and events refer to.
        keep: the largest number of samples.
    """
    if len(counted) <= keep:
        return []
    steps = sorted(counted)
    stay = {*steps[:FIRST], *steps[-(keep // 2) :]}
    stay.update(outermost([s for s in steps if s in referred and s not in stay], keep // 4))
    others = [step for step in steps if step not in stay]
    room = keep - keep // 2 - keep // 4 - FIRST
    every = 1
    while sum(counted[step] % every == 0 for step in others) > room:
        every *= 2
    return [step for step in others if counted[step] % every]


def outermost(steps: list[int], count: int) -> list[int]:
    """Return the first and the last of the steps, which show the start and the present state."""
    if len(steps) <= count:
        return steps
    return steps[: count - count // 2] + steps[len(steps) - count // 2 :]


def stride(last: int, most: int) -> tuple[int, int]:
    """Return the row number up to which rows are thinned, and the step between kept ones.

    The last half of ``most`` stays complete; before it there is a quarter of ``most`` or less.
    """
    until = last - most // 2
    step = 2
    while until // step > most // 4:
        step *= 2
    return until, step


class KeptNorms:
    """Counts the norms in a run file: the number of rows and bytes, by their list of names.

    Args:
        most: the bytes above which older rows are thinned, for all names alike.
    """

    def __init__(self, most: int = MOST_NORM_BYTES) -> None:
        self.most = most
        self.size = 0
        self._rows: dict[int, tuple[int, int, int]] = {}  # how many, the last number, bytes

    def note(self, record: ParameterNorms) -> None:
        """Note a written row."""
        count, _, size = self._rows.get(record.names, (0, 0, 0))
        self._rows[record.names] = count + 1, record.number, size + record.size
        self.size += record.size

    def to_thin(self) -> Iterator[tuple[int, int, int]]:
        """Yield names, with ``stride``'s numbers for their rows; ``thinned`` must follow."""
        if self.size <= self.most:
            return
        share = self.most / self.size
        for names, (count, last, _) in list(self._rows.items()):
            if count > LEAST_NORMS:
                yield (names, *stride(last, int(count * share)))

    def thinned(self, names: int, gone: int) -> None:
        """Note that so many rows of these names were removed."""
        count, last, size = self._rows[names]
        less = size * gone // count
        self._rows[names] = count - gone, last, size - less
        self.size -= less


class Kept:
    """The facts on a run file's content that thinning needs."""

    def __init__(
        self, keep: int, most_steps: int = MOST_STEPS, most_events: int = MOST_EVENTS
    ) -> None:
        self.keep, self.most_steps, self.most_events = keep, most_steps, most_events
        self.norms = KeptNorms()
        self.rows = self.events = self.last = self._taken = 0
        self._sampled: dict[int, int] = {}
        self._event_steps: set[int] = set()
        self._findings: dict[object, set[int]] = {}

    def note(self, record: TrainingRecord | TrainingRun) -> None:
        """Note a written record."""
        match record:
            case TrainingStep():
                self.rows += 1
                self.last = max(self.last, record.step)
            case ParameterNorms():
                self.norms.note(record)
            case StepSample() if record.step not in self._sampled:
                self._sampled[record.step] = self._taken
                self._taken += 1
            case TrainingEvent():
                self.events += 1
                self._event_steps.add(record.step)
            case TrainingFinding():
                self._findings[record.key] = {step for pair in record.steps for step in pair}

    @property
    def referred(self) -> set[int]:
        """The steps of events, and the first and last steps of findings."""
        return self._event_steps.union(*self._findings.values())

    def drop_samples(self) -> list[int]:
        """Return the steps whose samples must be dropped now; they count as dropped from now on."""
        if len(self._sampled) <= self.keep:
            return []
        steps = samples_to_drop(self._sampled, self.referred, self.keep)
        for step in steps:
            del self._sampled[step]
        return steps
