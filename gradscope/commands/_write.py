"""The only code that writes a command's result: to standard output, or to a file."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO, TypeGuard

from gradscope.errors import OptionError, visible
from gradscope.output_files import atomic_file, check_file, is_stream, write_file

STDOUT = Path("-")


def write_output(content: str | bytes, path: Path | None, *, force: bool = False) -> None:
    """Write to ``path``, or to standard output if it is None or ``-``.

    A file is written atomically; an existing file is replaced only with ``force``. Text is UTF-8; a
    lone surrogate, which UTF-8 lacks, becomes its escape. A closed pipe raises ``BrokenPipeError``
    for the caller.

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
    """Yield a new file to fill, for output that is too large for one text; otherwise as
    ``write_output``."""
    check_output(path, force=force)
    if path == STDOUT or is_stream(path):
        with tempfile.TemporaryDirectory() as folder:
            full = Path(folder) / "output"
            yield full
            write_output(full.read_bytes(), path)
        return
    with atomic_file(path, force=force) as temporary:
        yield temporary


def check_output(path: Path | None, *, force: bool = False) -> None:
    """Refuse an output path that cannot be written, before anything expensive runs.

    Raises:
        OptionError: the path exists, is a folder, or its folder does not exist or is not writable.
    """
    if path is None or path == STDOUT:
        if sys.stdout is None:
            raise OptionError("standard output is closed", help="write to a file: `-o FILE`")
        return
    check_file(path, force=force)


def say(notice: str) -> None:
    """Print a note to standard error; the result goes to standard output."""
    from gradscope.typeset.text import break_words  # imports rich

    for line in break_words(visible(f"note: {notice}"), stream_width(sys.stderr), indent="  "):
        print(line, file=sys.stderr)


def stream_width(stream: TextIO | None) -> int | None:
    """Return COLUMNS, else the terminal's width; None, for a file or a pipe, is unlimited.

    No shell exports COLUMNS by default, so a user who sets it for a pipe wants that width.
    """
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and len(columns) < 6 and int(columns) > 0:
        return int(columns)
    if not is_terminal(stream):
        return None
    try:
        # A terminal without a size (some CI, some editors) answers 0.
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def is_terminal(stream: TextIO | None) -> TypeGuard[TextIO]:
    """Return True if a person reads the stream as it is written."""
    return stream is not None and stream.isatty()


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
