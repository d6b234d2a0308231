"""The one place where a command's result leaves the process: standard output, or a whole file."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from gradscope.errors import OptionError

STDOUT = Path("-")


@contextlib.contextmanager
def keep_stdout_clean() -> Iterator[None]:
    """Within this, what the user's code prints goes to standard error: it is not the result.

    Where there are real streams their descriptors are turned too, for what a library in C, another
    process or a kept ``sys.__stdout__`` writes.
    """
    with contextlib.redirect_stdout(sys.stderr), _descriptor_turned():
        yield


@contextlib.contextmanager
def _descriptor_turned() -> Iterator[None]:
    real, errors = sys.__stdout__, sys.__stderr__
    try:
        if real is None or errors is None:
            raise ValueError("closed by whoever started the process")
        real.flush()
        out, err = real.fileno(), errors.fileno()
        kept = os.dup(out)
    except (OSError, ValueError):
        yield
        return
    os.dup2(err, out)
    try:
        yield
    finally:
        with contextlib.suppress(OSError, ValueError):
            real.flush()
        os.dup2(kept, out)
        os.close(kept)


def write_output(content: str | bytes, path: Path | None, *, force: bool = False) -> None:
    """Write to ``path``, or to standard output where it is None or ``-``.

    A file appears whole or not at all, and one that exists is replaced only with ``force``. Text is
    UTF-8; a lone surrogate, which UTF-8 lacks, becomes its escape. A closed pipe raises
    ``BrokenPipeError`` for the caller.

    Raises:
        OptionError: the path exists, is a folder, or cannot be written.
    """
    data = content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content
    check_output(path, force=force)
    if path is None or path == STDOUT:
        _write_stdout(data)
        return
    try:
        if _is_stream(path):
            path.write_bytes(data)
        else:
            with _beside(path, force=force) as temporary:
                temporary.write_bytes(data)
    except FileExistsError:
        raise _exists(path) from None
    except BrokenPipeError:
        raise
    except OSError as error:
        raise _unwritable(path, error) from None


@contextlib.contextmanager
def output_file(path: Path, *, force: bool = False) -> Iterator[Path]:
    """A new file to fill, for what is too large to be one text; then as ``write_output``."""
    check_output(path, force=force)
    if path == STDOUT or _is_stream(path):
        with tempfile.TemporaryDirectory() as folder:
            whole = Path(folder) / "output"
            yield whole
            write_output(whole.read_bytes(), path)
        return
    try:
        with _beside(path, force=force) as temporary:
            yield temporary
    except FileExistsError:
        raise _exists(path) from None
    except OSError as error:
        raise _unwritable(path, error) from None


@contextlib.contextmanager
def output_folder(path: Path, own: str, *, force: bool = False) -> Iterator[Path]:
    """A new folder to fill, whose files then are in ``path``, among others that may be there.

    Raises:
        OptionError: files whose names match ``own`` are there already, and there is no ``force``;
            or the folder cannot be written.
    """
    try:
        if path.exists() and not path.is_dir():
            raise OptionError(f"`{path}` is a file", help="give a folder's name")
        earlier = sorted(path.glob(own))
        if earlier and not force:
            raise _exists(earlier[0])
        temporary = _temporary(path)
        temporary.mkdir()
        try:
            yield temporary
            path.mkdir(exist_ok=True)
            for file in temporary.iterdir():
                file.replace(path / file.name)
            for file in earlier:
                file.unlink(missing_ok=True)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        raise _unwritable(path, error) from None


def check_output(path: Path | None, *, force: bool = False) -> None:
    """Refuse an output path that could not be written, before anything expensive runs.

    Raises:
        OptionError: the path exists, is a folder, or its folder is not there or not writable.
    """
    if path is None or path == STDOUT:
        if sys.stdout is None:
            raise OptionError("standard output is closed", help="write to a file: `-o FILE`")
        return
    try:
        if path.is_dir():
            raise OptionError(f"`{path}` is a folder", help="give `-o` a file's name")
        if _is_stream(path):
            return
        if os.path.lexists(path) and not force:
            raise _exists(path)
        folder = _destination(path).parent
        if not folder.exists():
            raise OptionError(f"no such folder: `{folder}`", help=f"create it: mkdir -p '{folder}'")
        if not folder.is_dir():
            raise OptionError(f"`{folder}` is not a folder")
        if not os.access(folder, os.W_OK | os.X_OK):
            raise OptionError(
                f"cannot write `{path}`: the folder is not writable", help="choose another folder"
            )
    except OSError as error:
        raise _unwritable(path, error) from None


def say(notice: str) -> None:
    """A word beside the result, which goes to standard output."""
    print(f"note: {notice}", file=sys.stderr)


def _write_stdout(data: bytes) -> None:
    buffer = getattr(sys.stdout, "buffer", None)
    try:
        if buffer is None:  # replaced by something that takes only text
            sys.stdout.write(data.decode("utf-8"))
        else:
            sys.stdout.flush()
            buffer.write(data)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OptionError(
            f"cannot write to standard output: {error.strerror or error}",
            help="write to a file elsewhere: `-o FILE`",
        ) from None


@contextlib.contextmanager
def _beside(path: Path, *, force: bool) -> Iterator[Path]:
    """A new file to fill beside the destination; what is in it then takes its place in one step."""
    target = _destination(path) if force else path
    temporary = _temporary(target)
    try:
        # Not tempfile: its files are private, and the result should have the usual permissions.
        temporary.touch(exist_ok=False)
        yield temporary
        if force:
            with contextlib.suppress(FileNotFoundError):
                temporary.chmod(stat.S_IMODE(target.stat().st_mode))
            temporary.replace(target)
        else:
            _claim(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def _temporary(path: Path) -> Path:
    return path.with_name(f".gradscope-{secrets.token_hex(8)}.tmp")


def _claim(temporary: Path, target: Path) -> None:
    """Give the file its name only if nobody has taken it; a rename would overwrite."""
    try:
        target.hardlink_to(temporary)
    except OSError as error:
        unsupported = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
        if error.errno not in unsupported:
            raise
        # No hard links here (FAT, some network folders): claim the name, then fill it.
        with target.open("xb"):
            pass
        temporary.replace(target)


def _destination(path: Path) -> Path:
    """Where a link points: the link stays, the file behind it is written."""
    return path.resolve() if path.is_symlink() else path


def _is_stream(path: Path) -> bool:
    """A device, a named pipe, a socket: there is nothing to overwrite, and no name to give away."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def _exists(path: Path) -> OptionError:
    return OptionError(f"`{path}` exists", help="add `--force` to overwrite it")


def _unwritable(path: Path, error: OSError) -> OptionError:
    return OptionError(
        f"cannot write `{path}`: {error.strerror or error}", help="choose another place"
    )
