"""gradscope's commands in their own processes, which share what takes longest: importing torch.

A server process imports the libraries once and copies itself for each command. What a test says
about imports or about how a process ends needs a fresh interpreter: ``subprocess`` gives one.
"""

from __future__ import annotations

import atexit
import io
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from multiprocessing.context import BaseContext
from pathlib import Path

#: What the server imports. Not gradscope: each command imports the package as its own process does.
_LIBRARIES = ["numpy", "PIL.Image", "pydantic", "rich.table", "torch", "torchvision", "typer"]


@dataclass(frozen=True, slots=True)
class Completed:
    """What a command left: its exit code and what it wrote."""

    returncode: int
    stdout: str
    stderr: str


def gradscope(
    words: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    merged: bool = False,
) -> Completed:
    """Run ``gradscope WORDS…`` in ``cwd`` and wait for its end.

    Args:
        words: the command line after the program's name.
        cwd: the working directory.
        env: the whole environment; None is this process's.
        merged: standard error goes to standard output, in the order in which both were written.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "stdout"
        err = out if merged else Path(folder) / "stderr"
        process = context().Process(
            target=_command, args=(list(words), str(cwd), dict(env or os.environ), out, err)
        )
        process.start()
        process.join()
        code = process.exitcode
        process.close()
        assert code is not None
        read = [path.read_text(encoding="utf-8") for path in (out, err)]
        return Completed(code, read[0], "" if merged else read[1])


@cache
def context() -> BaseContext:
    """Where the processes come from: from the server, where the system has one."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_LIBRARIES)
    return context


def _command(words: list[str], cwd: str, env: dict[str, str], out: Path, err: Path) -> None:
    """In the new process: become the command."""
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    for number, path in ((1, out), (2, err)):
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(handle, number)
        os.close(handle)
    # As an interpreter opens them that writes to a pipe.
    sys.stdout = sys.__stdout__ = _text(1, "strict")
    sys.stderr = sys.__stderr__ = _text(2, "backslashreplace", line_buffering=True)
    sys.argv = ["gradscope", *words]
    from gradscope.__main__ import main

    try:
        main()
    finally:
        atexit._run_exitfuncs()  # an interpreter does so at its end, a copy of a process does not


def _text(number: int, errors: str, *, line_buffering: bool = False) -> io.TextIOWrapper:
    binary = open(number, "wb", closefd=False)  # noqa: SIM115 # the process's own stream
    return io.TextIOWrapper(binary, encoding="utf-8", errors=errors, line_buffering=line_buffering)
