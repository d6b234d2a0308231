"""Finding a run's files and opening them, with a message for each kind of file that is not a
run."""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from gradscope.errors import ConfigError
from gradscope.output_files import check_readable, is_stream
from gradscope.runfile import schema

_MAGIC = b"SQLite format 3\x00"
_MADE = "`gradscope run SCRIPT.py` records one"
#: Where a run could not be written and read at once: for how long the writer is waited for.
_BUSY_SECONDS = 10
#: What SQLite opens of one run while it is written, and what the process has open besides.
_FILES_EACH, _OTHER_FILES = 3, 256
_RANK = re.compile(r"rank-(\d+)\.db")


def is_run(path: Path) -> bool:
    """Whether a word means a run: ``….db``, a database, or a folder of them."""
    if path.suffix.lower() == ".db":
        return True
    try:
        if path.is_dir():
            return any(path.glob("*.db"))
        if is_stream(path):
            return False
        with path.open("rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except (OSError, ValueError):  # no name that a file can have
        return False


def files_of(path: Path) -> tuple[Path, ...]:
    """The file itself, or the files in the folder, by rank.

    Raises:
        ConfigError: there is none.
    """
    if not path.is_dir():
        if not path.exists():
            raise ConfigError(f"there is no run `{path}`", help=_MADE)
        return (path,)
    ranked = {
        int(found[1]): file for file in path.iterdir() if (found := _RANK.fullmatch(file.name))
    }
    if ranked:
        return tuple(ranked[rank] for rank in sorted(ranked))
    runs = sorted(path.glob("*.db"), key=lambda file: file.stat().st_mtime)
    if runs:
        fault = f"`{path}` is a folder of {len(runs)} runs"
        raise ConfigError(fault, help=f"name one of them; the latest is `{runs[-1]}`")
    raise ConfigError(f"there is no run in the folder `{path}`", help=_MADE)


def file_of(path: Path, rank: int | None) -> Path:
    """The file of one rank; without a rank the given path, a file or a folder.

    Raises:
        ConfigError: there is no run, or none of that rank.
    """
    if rank is None:
        return path
    files = files_of(path)
    found = next((file for file in files if file.name == f"rank-{rank}.db"), None)
    if found is None:
        known = ", ".join(match[1] for file in files if (match := _RANK.fullmatch(file.name)))
        raise ConfigError(
            f"`{path}` has no file of rank {rank}",
            help=f"it has those of {known}" if known else "the run is that of one process",
        )
    return found


def allow_open_files(count: int) -> None:
    """Raise the process's limit of open files so that so many runs can be open, where it may be."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = _OTHER_FILES + _FILES_EACH * count
    if hard != resource.RLIM_INFINITY:
        needed = min(needed, hard)
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def connect(path: Path) -> sqlite3.Connection:
    """The file, opened for reading and nothing else.

    Raises:
        ConfigError: it cannot be read, or is no run that this gradscope knows.
    """
    try:
        check_readable(path)
        with path.open("rb") as file:
            head = file.read(len(_MAGIC))
    except OSError as error:
        raise ConfigError(f"cannot read `{path}`: {error.strerror or error}") from None
    if not head:
        raise ConfigError(f"`{path}` is empty: the run was killed at its start", help=_MADE)
    if head != _MAGIC:
        raise ConfigError(f"`{path}` is not a run: it is not a SQLite file", help=_MADE)
    with reading(path):
        connection = _opened(path)
        try:
            _check(connection, path)
        except BaseException:
            connection.close()
            raise
    return connection


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Within this, what SQLite says of a damaged file becomes an error that names it."""
    try:
        yield
    # The message itself can quote damaged bytes.
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the run in `{path}`: {error}") from None


def _opened(path: Path) -> sqlite3.Connection:
    """For reading; SQLite makes files beside it while a run is written, or was killed."""
    address = path.absolute().as_uri()
    journal = path.with_name(f"{path.name}-wal")
    try:
        return _answering(f"{address}?mode=ro")
    except sqlite3.OperationalError as error:
        # The low byte is the kind: https://www.sqlite.org/rescode.html#extrc
        kind = error.sqlite_errorcode & 0xFF
        if kind not in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY):
            raise
        if journal.exists() and journal.stat().st_size:
            raise
        # In a folder that cannot be written, without a writer: no journal is needed.
        return _answering(f"{address}?mode=ro&immutable=1")


def _answering(address: str) -> sqlite3.Connection:
    connection = sqlite3.connect(address, uri=True, timeout=_BUSY_SECONDS, isolation_level=None)
    try:
        connection.execute("SELECT count(*) FROM sqlite_schema")
    except BaseException:
        connection.close()
        raise
    return connection


def _check(connection: sqlite3.Connection, path: Path) -> None:
    ((application,),) = connection.execute("PRAGMA application_id")
    ((version,),) = connection.execute("PRAGMA user_version")
    if application != schema.APPLICATION:
        ((tables,),) = connection.execute("SELECT count(*) FROM sqlite_schema")
        if not tables:
            raise ConfigError(f"`{path}` is empty: the run was killed at its start", help=_MADE)
        raise ConfigError(f"`{path}` is a SQLite file, but not a run of gradscope", help=_MADE)
    if version > schema.VERSION:
        raise ConfigError(
            f"`{path}` was recorded by a newer gradscope: its schema is {version}, "
            f"this one reads {schema.VERSION}",
            help="read it with that version, or update gradscope",
        )
