"""Finds a run by its name, or the newest, and opens its files; names the kind of any other file."""

from __future__ import annotations

import contextlib
import re
import shlex
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gradscope.errors import ConfigError, OptionError
from gradscope.output_files import check_readable, is_stream
from gradscope.runfile import schema

_MAGIC = b"SQLite format 3\x00"
RECORD = "`gradscope run SCRIPT.py` records one"
#: Time to wait for the writer, if a run cannot be written and read at once.
_BUSY_SECONDS = 10
#: Files that SQLite opens for one run while it is written, and other open files of the process.
_FILES_EACH, _OTHER_FILES = 3, 256
_RANK = re.compile(r"rank-(\d+)\.db")


def is_run(path: Path) -> bool:
    """Return True if a word names a run: ``….db``, a database, or a folder of them."""
    if path.suffix.lower() == ".db":
        return True
    try:
        if path.is_dir():
            return any(path.glob("*.db"))
        if is_stream(path):
            return False
        return _begins_as_database(path)
    except (OSError, ValueError):  # no name that a file can have
        return False


def _begins_as_database(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def files_of(path: Path) -> tuple[Path, ...]:
    """Return the file itself, or the files in the folder, by rank.

    Raises:
        ConfigError: there is none.
    """
    if not path.is_dir():
        if not path.exists():
            raise ConfigError(f"there is no run `{path}`", help=RECORD)
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
    raise ConfigError(f"there is no run in the folder `{path}`", help=RECORD)


def file_of(path: Path, rank: int | None) -> Path:
    """Return the file of one rank; without a rank the given path, a file or a folder.

    Raises:
        ConfigError: there is no run, or it has no file of that rank.
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
    """Raise the process's limit of open files for this many runs, as far as allowed."""
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
    """Open the file for reading only.

    Raises:
        ConfigError: it cannot be read, or is no run that this gradscope knows.
    """
    try:
        check_readable(path)
    except OSError as error:
        raise ConfigError(f"cannot read `{path}`: {error.strerror or error}") from None
    with reading(path):
        # Only SQLite may open the file: if this process closed another handle of it, that would
        # release the locks of a writer in this process. https://www.sqlite.org/howtocorrupt.html
        # section 2.2
        try:
            connection = _opened(path)
        except sqlite3.DatabaseError as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_NOTADB and not _begins_as_database(path):
                fault = f"`{path}` is not a run: it is not a SQLite file"
                raise ConfigError(fault, help=RECORD) from None
            raise
        try:
            _check(connection, path)
        except BaseException:
            connection.close()
            raise
    return connection


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn SQLite's errors on a damaged file in the block into an error that names it."""
    try:
        yield
    # The message itself can quote damaged bytes.
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the run in `{path}`: {error}") from None


def _opened(path: Path) -> sqlite3.Connection:
    """Open a file for reading. SQLite keeps files beside it while a run is written, or if it was
    killed."""
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
            raise ConfigError(f"`{path}` is empty: the run was killed at its start", help=RECORD)
        raise ConfigError(f"`{path}` is a SQLite file, but not a run of gradscope", help=RECORD)
    if version > schema.VERSION:
        raise ConfigError(
            f"`{path}` was recorded by a newer gradscope: its schema is {version}, "
            f"this one reads {schema.VERSION}",
            help="read it with that version, or update gradscope",
        )


#: In the working directory, of the script and of the reader.
FOLDER = Path("gradscope-runs")
SUFFIX = ".db"

#: Products of a run by their file's suffix: the command after `gradscope`.
_SHOWN = {
    **dict.fromkeys((".html", ".json", ".csv", ".md", ".txt", ".sarif"), "show {run} -o {file}"),
    **dict.fromkeys((".png", ".svg", ".pdf"), "show {run} --plot {file}"),
    ".parquet": "export {run} --to parquet {file}",
}
#: Files of other kinds that cannot be a run.
_OTHERS = (
    *(".htm", ".jpg", ".jpeg", ".gif", ".log", ".ipynb", ".py", ".yaml", ".yml", ".toml"),
    *(".pt", ".pth", ".ckpt", ".bin", ".safetensors", ".npy", ".npz", ".gz", ".zip"),
)


def check_run_path(path: Path, way: str) -> None:
    """Refuse a run's path that ends as a page, a table or a picture does.

    Args:
        path: the given path.
        way: the command that takes a path, with `{run}` in its place.

    Raises:
        OptionError: the message says how to make such a file from a run.
    """
    suffix = path.suffix.lower()
    if suffix not in (*_SHOWN, *_OTHERS) and path != Path("-"):
        return
    run = shlex.quote(str(path.with_suffix(SUFFIX) if suffix else Path(f"run{SUFFIX}")))
    help = f"`{way.format(run=run)}`"
    if suffix in _SHOWN:
        show = _SHOWN[suffix].format(run=run, file=shlex.quote(str(path)))
        help += f", then `gradscope {show}`"
    where = f"as `{path}`" if suffix else "to standard output"
    raise OptionError(f"a run is a SQLite database and cannot be written {where}", help=help)


def recorded(folder: Path = FOLDER) -> list[Path]:
    """Return the runs in a folder, the newest first: files, and folders with a file for each
    rank."""
    try:
        beside = sorted(folder.iterdir())
    except OSError:
        return []
    runs = [one for one in beside if one.suffix == SUFFIX or any(one.glob("rank-*.db"))]
    return sorted(runs, key=lambda run: began(run) or _written(run), reverse=True)


def run_named(word: Path) -> Path | None:
    """Return the run that a word names: a path, with or without `.db`, here or in the folder.

    A path that ends in `.db` counts as a run even if it does not exist yet.
    """
    with_suffix = word.with_name(f"{word.name}{SUFFIX}") if word.name else word
    choices = [word, with_suffix, FOLDER / word, FOLDER / with_suffix]
    with contextlib.suppress(OSError, ValueError):  # no name that a file can have
        for path in choices:
            if path.exists() and is_run(path):
                return path
    return word if is_run(word) else None


def began(path: Path) -> float | None:
    """Return the start of the run, in seconds since 1970; None for a file that is no readable
    run."""
    with contextlib.suppress(ConfigError):
        file = files_of(path)[0]
        with contextlib.closing(connect(file)) as connection, reading(file):
            row = connection.execute("SELECT started FROM run").fetchone()
        if row is not None and isinstance(row[0], float):
            return row[0]
    return None


def _written(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


@dataclass(frozen=True, slots=True)
class ChosenRun:
    """A run to read; ``heading`` names it if the user did not."""

    path: Path
    heading: str | None = None


def chosen_run(word: Path | None, command: str) -> ChosenRun:
    """Return the run that a word names; without a word, the newest one.

    A word that names no run is returned unchanged; opening it raises the error.

    Raises:
        OptionError: there is neither a word nor a run.
    """
    if word is not None:
        return ChosenRun(run_named(word) or word)
    newest = newest_run()
    if newest is None:
        raise OptionError(f"no run is given, and `{FOLDER}` has none", help=name_one(command))
    return newest


def newest_run() -> ChosenRun | None:
    """Return the newest run in the folder of runs; None without one."""
    runs = recorded()
    return ChosenRun(runs[0], f"newest run: {runs[0]}") if runs else None


def name_one(command: str) -> str:
    """Return the advice to name a run that exists, or else to record one."""
    here = [path for path in recorded(Path()) if began(path) is not None]
    help = f"name one: `gradscope {command} {here[0]}`" if here else RECORD
    also = "; a saved report: `gradscope show report.json`" if command == "show" else ""
    return help + also
