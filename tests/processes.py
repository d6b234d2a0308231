"""Commands and scripts in their own processes, which share what takes longest: the imports.

A server process imports the libraries and gradscope once, and copies itself for each process that a
test asks for. What a test says about imports needs a fresh interpreter: ``subprocess`` gives one.
"""

from __future__ import annotations

import atexit
import builtins
import importlib.machinery
import io
import multiprocessing
import os
import runpy
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from multiprocessing import forkserver
from multiprocessing.context import BaseContext
from pathlib import Path
from types import ModuleType
from typing import NoReturn
from unittest import mock

#: What the server imports: the libraries, and of gradscope what a training under it needs.
_IMPORTED = [
    *("numpy", "PIL.Image", "pydantic", "rich.table", "torch", "torchvision", "typer"),
    *("gradscope.cli", "gradscope.commands.run", "gradscope.rules"),
    *("gradscope.training.observer", "gradscope.training.cause_tracer"),
]


@dataclass(frozen=True, slots=True)
class Completed:
    """What a process left: its exit code and what it wrote."""

    returncode: int
    out: bytes
    err: bytes

    @property
    def stdout(self) -> str:
        return self.out.decode()

    @property
    def stderr(self) -> str:
        return self.err.decode()


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
    return _completed(_command, words, cwd, env, merged)


def python(words: Sequence[str], *, cwd: Path, env: Mapping[str, str] | None = None) -> Completed:
    """Run ``python WORDS…``, a script or ``-m`` and a module, in ``cwd`` and wait for its end."""
    return _completed(_interpreter, words, cwd, env, merged=False)


def _completed(
    target: Callable[[list[str], str, dict[str, str], Path, Path], NoReturn],
    words: Sequence[str],
    cwd: Path,
    env: Mapping[str, str] | None,
    merged: bool,
) -> Completed:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "stdout"
        err = out if merged else Path(folder) / "stderr"
        process = context().Process(
            target=target, args=(list(words), str(cwd), dict(env or os.environ), out, err)
        )
        process.start()
        process.join()
        code = process.exitcode
        process.close()
        assert code is not None
        return Completed(code, out.read_bytes(), b"" if merged else err.read_bytes())


@cache
def context() -> BaseContext:
    """Where the processes come from: from the server, where the system has one."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_IMPORTED)
    # Sets have the same order in every process, also of the servers of two workers of pytest.
    with mock.patch.dict(os.environ, PYTHONHASHSEED="0"):
        forkserver.ensure_running()
    return context


def _command(words: list[str], cwd: str, env: dict[str, str], out: Path, err: Path) -> NoReturn:
    """In the new process: become the command."""
    _prepare(cwd, env, out, err)
    sys.argv = ["gradscope", *words]
    from gradscope.__main__ import main

    _end_after(main)


def _interpreter(words: list[str], cwd: str, env: dict[str, str], out: Path, err: Path) -> NoReturn:
    """In the new process: become an interpreter that runs a script or a module."""
    _prepare(cwd, env, out, err)
    main = ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, __annotations__={})
    sys.modules["__main__"] = main
    name, *arguments = words
    if name == "-m":
        sys.path[0] = cwd
        sys.argv = arguments
        _end_after(lambda: runpy._run_module_as_main(arguments[0]))
    path = str(Path(name).absolute())
    sys.path[0] = str(Path(path).parent)
    sys.argv = words
    loader = importlib.machinery.SourceFileLoader("__main__", path)
    main.__dict__.update(__file__=path, __loader__=loader, __cached__=None)
    code = compile(Path(path).read_bytes(), path, "exec", dont_inherit=True)
    _end_after(lambda: exec(code, main.__dict__))


def _prepare(cwd: str, env: dict[str, str], out: Path, err: Path) -> None:
    os.chdir(cwd)
    multiprocessing.process.ORIGINAL_DIR = cwd  # from which processes of its own find a script
    os.environ.clear()
    os.environ.update(env)
    for number, path in ((1, out), (2, err)):
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(handle, number)
        os.close(handle)
    # As an interpreter opens them that writes to a pipe.
    sys.stdout = sys.__stdout__ = _text(1, "strict")
    sys.stderr = sys.__stderr__ = _text(2, "backslashreplace", line_buffering=True)


def _end_after(run: Callable[[], object]) -> NoReturn:
    """Run it, and end the process as an interpreter does, which a copy of a process does not."""
    code: object = 0
    interrupted = False
    try:
        run()
    except SystemExit as stop:
        code = stop.code
    except BaseException as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        error.__traceback__ = trace
        sys.excepthook(type(error), error, trace)
        code, interrupted = 1, isinstance(error, KeyboardInterrupt)
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not stream.closed:
            stream.flush()
    if interrupted:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit((code or 0) & 0xFF)


def _text(number: int, errors: str, *, line_buffering: bool = False) -> io.TextIOWrapper:
    binary = open(number, "wb", closefd=False)  # noqa: SIM115 # the process's own stream
    return io.TextIOWrapper(binary, encoding="utf-8", errors=errors, line_buffering=line_buffering)
