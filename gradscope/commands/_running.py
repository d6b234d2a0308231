"""Surrounds the user's code while it runs: progress, time limit, restored state."""

from __future__ import annotations

import _thread
import builtins
import contextlib
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Any

from gradscope.errors import (
    GradscopeError,
    Interrupted,
    ModelError,
    OptionError,
    TimeIsUp,
    message_of,
    visible,
)
from gradscope.explain.shared.frames import nearest, shown
from gradscope.progress import Stage, handled_by
from gradscope.typeset.text import plain


@contextmanager
def interpreter_kept() -> Iterator[None]:
    """Restore builtins, the contents of ``json``, ``sys.exit``, finders, paths and modules.

    Raises:
        ModelError: one of them was replaced, and the code raised because of that.
    """
    # Nothing here may call a builtin before they are back.
    places, leave = [(m.__dict__, {**m.__dict__}) for m in (builtins, json)], sys.exit
    finders, paths, modules = [*sys.meta_path], [*sys.path], {**sys.modules}
    changed: list[str] = []

    def put_back() -> None:
        changed.extend(["sys.exit"] if sys.exit is not leave else [])
        for now, before in places:
            changed.extend([name for name in before if now.get(name) is not before[name]])
            now.update(before)
        sys.exit = leave
        lists: tuple[tuple[str, list[Any], list[Any]], ...] = (
            *(("meta_path", finders, sys.meta_path), ("path", paths, sys.path)),
        )
        for name, kept, held in lists:
            missing = [one for one in kept if one not in held]
            held[:0] = missing
            changed.extend([f"sys.{name}"] if missing else [])
        # None stands for a module that is not to be imported.
        gone = {n: m for n, m in modules.items() if m is not None and sys.modules.get(n) is None}
        sys.modules.update(gone)
        changed.extend(["sys.modules"] if gone else [])

    try:
        yield
    except BaseException as error:
        put_back()
        if not changed or isinstance(error, (GradscopeError, KeyboardInterrupt)):
            raise
        raise ModelError(
            f"the model's code changed {', '.join(f'`{name}`' for name in changed)}, and raised "
            f"{type(error).__name__}: {message_of(error) or 'without a message'}",
            help="restore what it replaces in Python before it returns",
        ) from error
    put_back()


_NUMBERS = {"stdout": 1, "stderr": 2}


@contextlib.contextmanager
def keep_stdout_clean() -> Iterator[None]:
    """Redirect the user's prints in the block to standard error, because they are not the result.
    This covers file descriptors too: output of C libraries, of other processes, and through
    ``sys.__stdout__``. Afterwards, the working folder, Python's own functions and closed streams
    are restored.
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
    """Replace Python's standard streams that the user's code closes or removes."""
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
    except FileNotFoundError:  # removed while a process was in it
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


#: Seconds that running code has to stop, once it was interrupted.
GRACE = 10.0


@contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """Interrupt the block after so many seconds, as Ctrl-C would.

    If the code swallows the interrupt or waits in C, the process ends.

    Raises:
        OptionError: the number is not a time.
        Interrupted: the time was up; the message names the line that ran then.
    """
    if seconds is None:
        yield
        return
    if not seconds > 0:
        raise OptionError(f"`--timeout {seconds:g}` leaves no time", help="give more than 0")
    runner, ended = threading.get_ident(), threading.Event()
    reasons: list[TimeIsUp] = []

    def end_in_time() -> None:
        if ended.wait(min(seconds, threading.TIMEOUT_MAX)):
            return
        place = _place(sys._current_frames()[runner])
        reasons.append(TimeIsUp(f"stopped after {seconds:g} s{place}"))
        _interrupt(runner)
        if not ended.wait(GRACE):
            _end(f"error: {reasons[0]}; an interrupt did not end it")

    def interrupted(number: int, frame: FrameType | None) -> None:
        raise reasons[0] if reasons else KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupted)
    timer = threading.Thread(target=end_in_time, name="time limit", daemon=True)
    timer.start()
    try:
        yield
    except TimeIsUp as reason:
        raise Interrupted(str(reason)) from None
    finally:
        ended.set()
        timer.join()
        signal.signal(signal.SIGINT, before)


def _place(frame: FrameType) -> str:
    """Return the user's line that runs, else a library's."""
    user = nearest(frame)
    if user is None:
        return ""
    return f", at {shown(user.f_code.co_filename)}:{user.f_lineno} in `{user.f_code.co_qualname}`"


def _interrupt(thread: int) -> None:
    """Interrupt as Ctrl-C would; wakes a sleeping thread if the system can."""
    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(thread, signal.SIGINT)
    else:
        _thread.interrupt_main()


def _end(words: str) -> None:
    """End the process at once: no file is written while a model runs."""
    if sys.__stderr__ is not None:
        print(visible(words), file=sys.__stderr__, flush=True)
    os._exit(Interrupted.exit_code)


#: Seconds after which a reader wonders whether anything happens.
PATIENCE = 2.0


@contextmanager
def running(timeout: float | None, *, shown: bool = True) -> Iterator[None]:
    """Load and run a model in the block; ``shown`` is True if progress may show.

    Raises:
        OptionError: the timeout is not a time.
        Interrupted: the time was up.
    """
    with keep_stdout_clean(), shown_progress() if shown else nullcontext(), time_limit(timeout):
        yield


@contextmanager
def shown_progress() -> Iterator[None]:
    """Show progress of slow work in the block on standard error, if that is a terminal.

    The line disappears when the block ends. The user's prints appear above it; for this, the line
    replaces ``sys.stdout``, so the block must be inside ``keep_stdout_clean``.
    """
    if sys.stderr is None or not sys.stderr.isatty():
        yield
        return
    line = _Line()
    timer = threading.Timer(PATIENCE, line.show)
    timer.daemon = True
    timer.start()
    try:
        with handled_by(line.update):
            yield
    finally:
        timer.cancel()
        line.close()


class _Line:
    """The latest stage; nothing is drawn before ``show``."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stage = Stage(("starting",))
        self._bar: Any = None
        self._task: Any = None
        self._closed = False

    def update(self, stage: Stage) -> None:
        """Remember the stage, and draw if the line is shown."""
        with self._lock:
            fresh = stage.words != self._stage.words
            self._stage = stage
            if self._bar is not None:
                self._draw(fresh)

    def show(self) -> None:
        """Begin to draw."""
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            Progress,
            SpinnerColumn,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        with self._lock:
            if self._closed:
                return
            self._bar = Progress(
                SpinnerColumn(),
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=20),
                TimeElapsedColumn(),
                TextColumn("{task.fields[left]}"),
                TimeRemainingColumn(compact=True),
                console=Console(stderr=True),
                transient=True,
            )
            self._task = self._bar.add_task("", total=None, left="")
            self._draw(False)
            self._bar.start()

    def close(self) -> None:
        """Remove the line."""
        with self._lock:
            self._closed = True
            if self._bar is not None:
                self._bar.stop()

    def _draw(self, fresh: bool) -> None:
        stage = self._stage
        if fresh:  # another thing, with its own time
            self._bar.reset(self._task)
        counted = stage.total is not None
        self._bar.update(
            self._task,
            description=plain(": ".join(word for word in stage.words if word)),
            total=stage.total,
            completed=stage.done or 0,
            left="left" if counted else "",
        )
