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
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import thread
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from multiprocessing import connection, forkserver, resource_tracker
from multiprocessing.context import BaseContext
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn, TextIO
from unittest import mock

#: In the environment of a command it asks for fresh interpreters for what the command starts.
FRESH = "GRADSCOPE_TESTS_FRESH"
#: What the server imports: the libraries, and of gradscope what most commands need.
_IMPORTED = [
    *("numpy", "numpy.typing", "PIL.Image", "pydantic", "pydantic.type_adapter", "rich.table"),
    *("torch", "torchvision", "typer", "typer._adapters", "yaml"),
    *("gradscope.cli", "gradscope.commands.run", "gradscope.commands.inspect"),
    *("gradscope.api.graphing", "gradscope.api.inspecting", "gradscope.api.opened"),
    *("gradscope.training.observer", "gradscope.training.traced_steps"),
    "frozen",
]


@dataclass(frozen=True, slots=True)
class Completed:
    """Exit code and output of a process."""

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
    return _Started(_command, words, cwd, env, merged=merged).ended()


def interrupted(
    words: Sequence[str], number: signal.Signals, line: str, *, cwd: Path, env: Mapping[str, str]
) -> Completed:
    """Run ``gradscope WORDS…``, send it a signal once ``line`` is on standard error, and wait."""
    started = _Started(_command, words, cwd, env)
    while not started.has_said(line):
        time.sleep(0.01)
    assert started.process.pid is not None
    os.kill(started.process.pid, number)
    return started.ended()


def python(words: Sequence[str], *, cwd: Path, env: Mapping[str, str] | None = None) -> Completed:
    """Run ``python WORDS…``, a script or ``-m`` and a module, in ``cwd`` and wait for its end."""
    return _Started(_interpreter, words, cwd, env).ended()


def together(
    words: Sequence[str], *, cwd: Path, envs: Sequence[Mapping[str, str]]
) -> list[Completed]:
    """Run ``python WORDS…`` once in each environment, side by side; where one fails, all end."""
    started = [_Started(_interpreter, words, cwd, env) for env in envs]
    running = {one.process.sentinel: one for one in started}
    while running:
        for sentinel in connection.wait([*running]):
            if running.pop(sentinel).process.exitcode:
                for other in running.values():
                    other.process.terminate()
    return [one.ended() for one in started]


class _Started:
    """A process, and the files of what it writes."""

    def __init__(
        self,
        target: Callable[[list[str], str, dict[str, str], Path, Path], NoReturn],
        words: Sequence[str],
        cwd: Path,
        env: Mapping[str, str] | None,
        *,
        merged: bool = False,
    ) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._out = Path(self._folder.name) / "stdout"
        self._err = self._out if merged else Path(self._folder.name) / "stderr"
        self.process = context().Process(
            target=target,
            args=(
                list(words),
                str(cwd),
                dict(env or os.environ),
                self._out,
                self._err or self._out,
            ),
        )
        self.process.start()

    def has_said(self, line: str) -> bool:
        """Return True once the line is on standard error.

        Raises:
            AssertionError: it ended before.
        """
        alive = self.process.is_alive()
        said = self._err.exists() and line in self._err.read_text().splitlines()
        assert said or alive, f"it ended before it said `{line}`"
        return said

    def ended(self) -> Completed:
        """Wait for its end."""
        with self._folder:
            self.process.join()
            code = self.process.exitcode
            self.process.close()
            assert code is not None
            out, err = self._out.read_bytes(), self._err.read_bytes()
            return Completed(code, out, err if self._err != self._out else b"")


@cache
def context() -> BaseContext:
    """Return the context that starts processes: a fork server, if the system has one."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_IMPORTED)
    # Sets have the same order in every process, also of the servers of two workers of pytest. The
    # server finds modules by the environment alone.
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    with mock.patch.dict(os.environ, PYTHONHASHSEED="0", PYTHONPATH=path):
        forkserver.ensure_running()
    return context


def _command(
    words: list[str],
    cwd: str,
    env: dict[str, str],
    out: Path,
    err: Path,
    around: AbstractContextManager[None] | None = None,
) -> NoReturn:
    """In the new process: become the command, with something ``around`` all but its last flush."""
    _prepare(cwd, env, out, err)
    if hasattr(os, "fork"):
        subprocess.Popen = _Nested  # type: ignore[misc]
    _gradscope(words, around)


def _gradscope(words: list[str], around: AbstractContextManager[None] | None = None) -> NoReturn:
    sys.argv = ["gradscope", *words]
    from gradscope.__main__ import main

    _end_after(main, around)


class _Nested(subprocess.Popen[bytes]):
    """A process of a copied command: if it is gradscope too, a copy of the copy.

    Python starts no other program then: what would come just before it becomes the command.
    """

    def __init__(self, args: Sequence[str], **kwargs: Any) -> None:
        env = dict(kwargs.get("env") or os.environ)
        if [*args[:3]] == [sys.executable, "-m", "gradscope"] and FRESH not in env:
            kwargs["preexec_fn"] = partial(_become, [*args[3:]], env)
            # What a copy inherits as its first descriptor is the server's.
            kwargs["stdin"] = kwargs.get("stdin") or subprocess.DEVNULL
        super().__init__(args, **kwargs)


def _become(words: list[str], env: dict[str, str]) -> NoReturn:
    """In the new process, whose working directory and streams are set."""
    for finalizer in [*weakref.finalize._registry]:  # its temporary folders are the parent's
        finalizer.atexit = False
    thread._threads_queues.clear()  # at its end it would wait for the parent's threads
    # An interpreter has no server to copy processes from, and no tracker of resources yet.
    multiprocessing.set_start_method(None, force=True)
    resource_tracker._resource_tracker._fd = None
    os.closerange(3, 1 << 10)  # among them the pipe that the parent reads until the program starts
    os.environ.clear()
    os.environ.update(env)
    multiprocessing.process.ORIGINAL_DIR = str(Path.cwd())
    sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    _streams()
    _gradscope(words)


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
    multiprocessing.process.ORIGINAL_DIR = cwd  # from which its own processes find a script
    os.environ.clear()
    os.environ.update(env)
    for number, path in ((1, out), (2, err)):
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(handle, number)
        os.close(handle)
    _streams()


def _streams() -> None:
    """Open them as an interpreter that writes to a pipe."""
    sys.stdout = sys.__stdout__ = _text(1, "strict")
    sys.stderr = sys.__stderr__ = _text(2, "backslashreplace", line_buffering=True)


def _end_after(
    run: Callable[[], object], around: AbstractContextManager[None] | None = None
) -> NoReturn:
    """Run it, and end the process as an interpreter does, which a copy of a process does not."""
    code: object = 0
    interrupted = False
    with around or nullcontext():
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
    code = (code or 0) if _flushed(sys.stdout) else 120
    _flushed(sys.stderr)
    if interrupted:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code & 0xFF)


def _flushed(stream: TextIO | None) -> bool:
    """Flush the stream; return True if that worked."""
    try:
        if stream is not None and not stream.closed:
            stream.flush()
    except OSError:
        return False
    return True


def _text(number: int, errors: str, *, line_buffering: bool = False) -> io.TextIOWrapper:
    binary = open(number, "wb", closefd=False)  # noqa: SIM115 # the process's own stream
    return io.TextIOWrapper(binary, encoding="utf-8", errors=errors, line_buffering=line_buffering)
