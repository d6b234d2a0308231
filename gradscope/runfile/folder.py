"""The default folder of runs, the newest run in it, and a run by its name."""

from __future__ import annotations

import contextlib
import shlex
from pathlib import Path

from gradscope.errors import ConfigError, OptionError
from gradscope.runfile.opening import connect, files_of, is_run, reading

#: In the working directory, of the script and of the reader.
FOLDER = Path("gradscope-runs")
SUFFIX = ".db"

#: What can be made of a run, by the suffix of its file: the command after `gradscope`.
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
        path: that was given.
        way: how to give one, with `{run}` in the path's place.

    Raises:
        OptionError: says how such a file is made of a run.
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
    """The runs in a folder, the newest first: files, and folders with a file for each rank."""
    try:
        beside = sorted(folder.iterdir())
    except OSError:
        return []
    runs = [one for one in beside if one.suffix == SUFFIX or any(one.glob("rank-*.db"))]
    return sorted(runs, key=lambda run: began(run) or _written(run), reverse=True)


def run_named(word: Path) -> Path | None:
    """The run that a word means: a path, with or without `.db`, here or in the folder.

    A path that ends in `.db` is a run also where there is none yet.
    """
    with_suffix = word.with_name(f"{word.name}{SUFFIX}") if word.name else word
    choices = [word, with_suffix, FOLDER / word, FOLDER / with_suffix]
    with contextlib.suppress(OSError, ValueError):  # no name that a file can have
        for path in choices:
            if path.exists() and is_run(path):
                return path
    return word if is_run(word) else None


def began(path: Path) -> float | None:
    """When the run began, in seconds since 1970; None for a file that is not a readable run."""
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
