"""The one place where a command's result leaves the process: standard output, or a full file."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from gradscope.commands._interpreter import interpreter_kept
from gradscope.errors import ModelError, OptionError, visible
from gradscope.output_files import check_file, is_stream, whole_file, write_file

STDOUT = Path("-")
_NUMBERS = {"stdout": 1, "stderr": 2}


@contextlib.contextmanager
def keep_stdout_clean() -> Iterator[None]:
    """Within this, what the user's code prints goes to standard error: it is not the result.

    Where there are real streams their descriptors are turned too, for what a library in C, another
    process or a kept ``sys.__stdout__`` writes. Whatever folder that code changes to, the result's
    path means the same after it; so do Python's own functions, and what it closes is open again.
    """
    with (
        interpreter_kept(),
        _streams_open(),
        contextlib.redirect_stdout(sys.stderr),
        _descriptor_turned(),
        _folder_kept(),
    ):
        yield


@contextlib.contextmanager
def _streams_open() -> Iterator[None]:
    """Python's own streams, where the user's code closes them or puts nothing in their place."""
    before = {name: getattr(sys, name) for name in ("stdout", "stderr")}
    try:
        yield
    finally:
        for name, stream in before.items():
            if stream is not None and stream.closed:
                stream = open(_NUMBERS[name], "w", encoding=stream.encoding, closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)


@contextlib.contextmanager
def _folder_kept() -> Iterator[None]:
    try:
        folder = Path.cwd()
    except FileNotFoundError:  # removed while somebody was in it
        yield
        return
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.chdir(folder)


@contextlib.contextmanager
def _descriptor_turned() -> Iterator[None]:
    real, errors = sys.__stdout__, sys.__stderr__
    try:
        if real is None or errors is None:
            raise ValueError("closed by the caller that started the process")
        real.flush()
        out, err = real.fileno(), errors.fileno()
        kept = {number: os.dup(number) for number in (out, err)}
    except (OSError, ValueError):
        yield
        return
    os.dup2(err, out)
    try:
        yield
    finally:
        with contextlib.suppress(OSError, ValueError):
            real.flush()
        try:
            for number, copy in kept.items():
                os.dup2(copy, number)
                os.close(copy)
        except OSError as error:
            raise ModelError(
                "the model's code closed file descriptors that it had not opened: the output "
                "cannot be written",
                help="close files through their file objects",
            ) from error


def write_output(content: str | bytes, path: Path | None, *, force: bool = False) -> None:
    """Write to ``path``, or to standard output where it is None or ``-``.

    A file is written atomically, and one that exists is replaced only with ``force``. Text is
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
    write_file(data, path, force=force)


@contextlib.contextmanager
def output_file(path: Path, *, force: bool = False) -> Iterator[Path]:
    """A new file to fill, for output that is too large for one text; then as ``write_output``."""
    check_output(path, force=force)
    if path == STDOUT or is_stream(path):
        with tempfile.TemporaryDirectory() as folder:
            full = Path(folder) / "output"
            yield full
            write_output(full.read_bytes(), path)
        return
    with whole_file(path, force=force) as temporary:
        yield temporary


def check_output(path: Path | None, *, force: bool = False) -> None:
    """Refuse an output path that could not be written, before anything expensive runs.

    Raises:
        OptionError: the path exists, is a folder, or its folder is not there or not writable.
    """
    if path is None or path == STDOUT:
        if sys.stdout is None:
            raise OptionError("standard output is closed", help="write to a file: `-o FILE`")
        return
    check_file(path, force=force)


def say(notice: str) -> None:
    """A word beside the result, which goes to standard output."""
    print(visible(f"note: {notice}"), file=sys.stderr)


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
