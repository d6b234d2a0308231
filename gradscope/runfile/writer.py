"""Writes a run in its own thread, beside the training. Its errors never reach the script."""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import sqlite3
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from itertools import chain
from pathlib import Path

from gradscope.errors import OptionError
from gradscope.records.training import StepSample, TrainingRecord, TrainingRun
from gradscope.runfile import database, schema
from gradscope.runfile.database import Kept

#: Longest delay of a write.
_DELAY = 0.25
#: Number of calls and parameters that may wait, in samples: some tens of megabytes.
_MOST_WAITING = 8192
#: For how long the end of a run waits for a disk that does not answer, and a fork for the thread.
_PATIENCE, _PAUSE = 10.0, 1.0
#: Seconds between checks that all is written.
_GLANCE = 0.005

#: Signals that the thread's own code causes.
_FAULTS = {signal.SIGSEGV, signal.SIGFPE, signal.SIGILL, getattr(signal, "SIGBUS", signal.SIGILL)}


def block_signals() -> None:
    """Keep a script's signals from this thread: it may block one in its own and wait for it."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _FAULTS)


_Item = tuple[TrainingRecord | TrainingRun, ...]


class RunWriter:
    """Writes the records of one process to one file.

    Args:
        path: a file that does not exist yet. Its folder is created if only that one is missing.
        run: the facts that are known when the run begins.
        keep: the largest number of sampled steps; older ones are thinned.

    Attributes:
        failure: a sentence on the error that ended the recording; None without one.

    Raises:
        OptionError: the file cannot be made, or ``keep`` leaves too few.
    """

    failure: str | None

    def __init__(self, path: Path, run: TrainingRun, *, keep: int = schema.KEEP) -> None:
        if keep < schema.LEAST_KEEP:
            raise OptionError(
                f"`--keep {keep}` leaves too few samples", help=f"give {schema.LEAST_KEEP} or more"
            )
        self.path, self.failure = path, None
        self._connection = database.create(path, run)
        self._kept = Kept(keep)
        self._began = time.monotonic()
        self._waiting: deque[_Item] = deque()
        self._late: deque[StepSample] = deque()  # whose steps are written; the thread's own
        self._weight = 0  # of the samples that wait
        self._dropped = self._told = (0, 0, 0)  # samples without room: count, first and last step
        # The lock is reentrant, because a signal handler may run training steps.
        self._lock = threading.RLock()
        self._some, self._now = threading.Event(), threading.Event()
        self._closed = self._ending = self._pausing = False
        #: Another task of the thread, its period in seconds, and the time of its next run.
        self._check: Callable[[], bool] | None = None
        self._period = self._next_check = 0.0
        self._thread: threading.Thread | None = None
        self._start()
        _writers.add(self)

    def add(self, *records: TrainingRecord) -> None:
        """Write records, all in one transaction. Takes microseconds, and never fails.

        If the thread cannot keep up, samples are written later than the rest; if the disk cannot,
        they are dropped, and an event gives their number.
        """
        if self._closed or not records:
            return
        weight = _weight(records)
        with self._lock:
            if weight and self._weight and self._weight + weight > _MOST_WAITING:
                self._drop(records)
                records, weight = tuple(r for r in records if not isinstance(r, StepSample)), 0
            self._weight += weight
            self._waiting.append(records)
        # Setting an event takes longer than checking it.
        if not self._some.is_set():
            self._some.set()
        if self._weight > _MOST_WAITING // 2 and not self._now.is_set():
            self._now.set()

    def call_each(self, seconds: float, check: Callable[[], bool]) -> None:
        """Call ``check`` from the thread every ``seconds``, until it returns True."""
        self._period, self._next_check = seconds, time.monotonic() + seconds
        self._check = check
        self._some.set()

    def _drop(self, records: _Item) -> None:
        dropped = {one.step for one in records if isinstance(one, StepSample)}
        count, first, _ = self._dropped
        self._dropped = count + len(dropped), first or min(dropped), max(dropped)

    def finish(self, run: TrainingRun) -> None:
        """Write the waiting records and the run's end, and close the file. Never fails."""
        if not self._closed:
            self._waiting.append((run,))
            self.close()

    def flush(self) -> None:
        """Wait until all added records are written, for a limited time."""
        until = time.monotonic() + _PATIENCE
        while self._thread is not None and not self._closed and time.monotonic() < until:
            with self._lock:
                if not self._waiting and not self._weight:
                    return
            self._some.set()
            self._now.set()
            time.sleep(_GLANCE)

    def close(self) -> None:
        """Write the waiting records, and close the file.

        Without ``finish``, the run counts as cut off. The call waits only for a limited time for a
        disk that does not answer.
        """
        with self._lock:
            again, thread = self._closed, self._thread
            self._closed = self._ending = True
        self._some.set()
        self._now.set()
        if thread is not None:
            thread.join(_PATIENCE)
            if thread.is_alive() and self.failure is None:
                self.failure = f"`{self.path}` lacks the end of the run: the disk does not respond"
        elif not again:
            self._work()  # no thread could be started

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._beside, name="gradscope run file", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # the interpreter is ending, or there are too many threads
            self._thread = None

    def _beside(self) -> None:
        block_signals()
        self._work()

    def _work(self) -> None:
        """Write records until the end or a pause."""
        try:
            while True:
                until = self._next_check - time.monotonic()
                self._some.wait(None if self._check is None else max(0.0, until))
                self._some.clear()
                self._run_check()
                if not (self._ending or self._pausing):
                    self._now.wait(_DELAY)
                    self._now.clear()
                while (self._waiting or self._late) and not self._pausing:
                    self._write_some()
                with self._lock:
                    if self._pausing or self._ending:
                        self._thread, ended = None, not self._pausing
                        break
            if ended:
                database.close(self._connection)
        except Exception as error:
            self._fail(error)

    def _run_check(self) -> None:
        now = time.monotonic()
        if self._check is None or now < self._next_check or self._ending:
            return
        self._next_check = now + self._period
        if self._check():
            self._check = None

    def _write_some(self) -> None:
        """Write waiting records: as many samples as fit into a quarter second."""
        with self._lock:
            waiting, dropped = tuple(self._waiting), self._dropped
        batch = database.Batch()
        for record in chain.from_iterable(waiting):
            if isinstance(record, StepSample):
                self._late.append(record)
            else:
                batch.add(record)
                self._kept.note(record)
        samples = []
        until = time.monotonic() + _DELAY
        while self._late and not self._pausing and time.monotonic() < until:
            samples.append(self._late.popleft())
            batch.add(samples[-1])
            self._kept.note(samples[-1])
        with database.transaction(self._connection):
            batch.write(self._connection)
            if dropped != self._told:
                database.write_dropped(self._connection, time.monotonic() - self._began, dropped)
            database.thin(self._connection, self._kept)
        with self._lock:
            for _ in waiting:
                self._waiting.popleft()
            self._weight -= _weight(samples)
        self._told = dropped

    def _fail(self, error: Exception) -> None:
        known = isinstance(error, sqlite3.Error | OSError)
        reason = str(error) if known else f"{type(error).__name__}: {error}"
        self.failure = (
            f"the recording in `{self.path}` ended before step {self._kept.last}: {reason}"
        )
        self._closed = True
        self._waiting.clear()
        self._late.clear()
        database.give_up(self._connection)

    def pause(self) -> None:
        """Stop the thread before the process forks: a copy of it could hold locks."""
        with self._lock:
            thread = self._thread
            if self._closed or thread is None or thread is threading.current_thread():
                return
            self._pausing = True
        self._some.set()
        self._now.set()
        thread.join(_PAUSE)

    def resume(self) -> None:
        """Go on after the fork, in the process that writes."""
        with self._lock:
            self._pausing = False
            if self._thread is None and not self._closed:
                self._start()
        self._some.set()

    def abandon(self) -> None:
        """Stop writing for good, in a forked process: the file belongs to the parent process."""
        self._closed, self._thread = True, None
        self._waiting, self._late = deque(), deque()
        # SQLite's connection must not be closed here either, not even by the garbage collector:
        # https://www.sqlite.org/howtocorrupt.html#_carrying_an_open_database_connection_across_a_fork_
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._connection))


def _weight(records: Iterable[object]) -> int:
    """Return the number of calls and parameters in the samples, as a measure of memory."""
    return sum(
        1 + len(one.report.calls) + len(one.report.parameters)
        for one in records
        if isinstance(one, StepSample)
    )


#: The writers of this process. A handler of forks can be registered once, and never removed.
_writers: weakref.WeakSet[RunWriter] = weakref.WeakSet()


def _each(act: Callable[[RunWriter], None]) -> None:
    for writer in tuple(_writers):
        act(writer)


# Registered before the script's own, and so called after them: a script may train until then.
atexit.register(_each, RunWriter.close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=lambda: _each(RunWriter.pause),
        after_in_parent=lambda: _each(RunWriter.resume),
        after_in_child=lambda: _each(RunWriter.abandon),
    )
