"""Sends a run to an experiment tracker while it goes on: a thread for each ``--to``.

The thread reads the run's file and sends what is new, so that the script waits for nothing and a
tracker that does not answer costs no step. After each round it waits for 200 times the CPU time
that the round took.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from gradscope import plugins
from gradscope.errors import GradscopeError, OptionError, message_of, refuse_unknown
from gradscope.records.training import TrainingRun
from gradscope.runfile.exports import trackers
from gradscope.runfile.reader import RunFile
from gradscope.runfile.tracking import MOST_KEYS, KeepsFiles, KeySelection, Tracker, Unsent, attach
from gradscope.runfile.writer import block_signals
from gradscope.typeset.numbers import plural

ROOM = "gradscope.runfile.exports"
#: Seconds between two rounds, the same after failures, and how many rounds that a share of time is.
_PAUSE, _LONGEST_PAUSE, _SHARE = 1.0, 64.0, 0.005
#: For how many seconds the end of a script waits for all that was not sent yet.
PATIENCE = 10.0
#: Seconds between two reads of the files of other processes.
_GLANCE = 0.1
#: Second word of `export --to`; for a collector it is its address.
_PLACES = {"wandb": "PROJECT", "trackio": "PROJECT", "mlflow": "EXPERIMENT", "tensorboard": "DIR"}
#: Schemes of addresses that are not a tracker's name.
_SCHEMES = {"otlps": "otlp"}
#: Length of a shown error.
_MOST_CHARACTERS = 200

#: Makes the page of a run, and of how it ended.
PageOf = Callable[[RunFile, TrainingRun | None], str]


class OnePage:
    """Makes the page of an ended run, once for all its trackers.

    Callers hold ``_reading``, so only one runs at a time.
    """

    def __init__(self, make: PageOf) -> None:
        self._make = make
        self._ended: tuple[TrainingRun, str] | None = None

    def __call__(self, run: RunFile, ended: TrainingRun | None) -> str:
        """Return the page; for a run that goes on, the page of this moment."""
        if ended is None:
            return self._make(run, None)
        if self._ended is None or self._ended[0] is not ended:
            self._ended = ended, self._make(run, ended)
        return self._ended[1]


@dataclass(frozen=True, slots=True)
class Destination:
    """Destination of ``--to``: a tracker, and its place.

    Attributes:
        name: the tracker.
        place: the address of a collector; else the working directory before the script runs.
    """

    name: str
    place: str

    @classmethod
    def of(cls, text: str) -> Destination:
        """Return the destination that a word names: ``wandb`` or ``otlp://host``.

        Raises:
            OptionError: there is no such tracker, or its package is not installed.
        """
        scheme, _, rest = text.partition("://")
        name = _SCHEMES.get(scheme, scheme)
        module = cls(name, "").module
        if not hasattr(module, "joined"):
            raise OptionError(
                f"`--to {name}` is a format of files; a run that goes on is sent to a tracker",
                help=f"after the run: `gradscope export --to {name} PATH`",
            )
        check_packages(name, module)
        if hasattr(module, "address"):
            return cls(name, module.address(text if rest else ""))
        if rest:
            raise OptionError(f"`{name}` takes no address", help=f"write `--to {name}`")
        return cls(name, str(Path.cwd()))

    @property
    def module(self) -> ModuleType:
        """The tracker's file.

        Raises:
            OptionError: there is no such tracker.
        """
        if self.name not in plugins.names(ROOM):
            refuse_unknown("tracker", self.name, trackers())
        module: ModuleType = plugins.load(ROOM, self.name)
        return module


def check_packages(name: str, module: ModuleType) -> None:
    """Refuse a tool whose package is missing.

    Raises:
        OptionError: says how to install it.
    """
    missing = [one for one in module.packages if importlib.util.find_spec(one) is None]
    if missing:
        extra = "'gradscope[export]'" if hasattr(module, "folder") else missing[0]
        raise OptionError(
            f"`--to {name}` needs {missing[0]}, which is not installed",
            help=f"pip install {extra}",
        )


@dataclass(frozen=True, slots=True)
class TrackerSettings:
    """The options ``--to`` and ``--keys``, the function that makes the page for the end, and
    whether a wait at the end is silent.
    """

    to: tuple[Destination, ...] = ()
    keys: int = MOST_KEYS
    page: PageOf | None = None
    quiet: bool = False

    @classmethod
    def of(
        cls, to: Sequence[str] | str, keys: int, page: PageOf, *, quiet: bool
    ) -> TrackerSettings:
        """Parse settings from words.

        Raises:
            OptionError: there is no such tracker, its package is missing, or there are no keys.
        """
        if keys < 1:
            raise OptionError(f"`keys={keys}` is out of range", help="give 1 or more")
        words = (to,) if isinstance(to, str) else tuple(to)
        return cls(tuple(dict.fromkeys(map(Destination.of, words))), keys, OnePage(page), quiet)


class TrackerThread:
    """Sends one run to one tracker.

    Args:
        destination: the tracker.
        path: the run's file, or its folder.
        settings: the number of keys, and the page.
        layers: patterns of the layers that come first.
        flush: has all steps so far written to the file.
        report: called once, with a sentence, if the tracker does not answer.
    """

    def __init__(
        self,
        destination: Destination,
        path: Path,
        settings: TrackerSettings,
        layers: Sequence[str],
        *,
        flush: Callable[[], None],
        report: Callable[[str], None],
    ) -> None:
        self.destination, self._path = destination, path
        self._flush, self._report, self._page = flush, report, settings.page
        self._quiet, self._process = settings.quiet, os.getpid()
        self._unsent = Unsent(KeySelection(settings.keys, layers))
        self._tracker: Tracker | None = None
        self._tries, self._next_try = 0, 1
        self._failure: str | None = None  # of the last round
        self._left = 0  # rows that it could not send
        self._reported = False
        self._run: TrainingRun | None = None  # as it ended
        self._ending, self._ended = threading.Event(), threading.Event()
        self._until: float | None = None  # when the script's wait for it is over

    def join(self) -> bool:
        """Join the run that the script opened; return True if there is nothing left to try.

        Called in the thread that trains, after each step. It searches after 1, 2, 4, 8, … steps.
        """
        self._tries += 1
        if self._tries >= self._next_try:
            self._next_try *= 2
            self._join()
        return self._tracker is not None or self._failure is not None

    def _join(self) -> None:
        try:
            place = self.destination.place
            self._tracker = self.destination.module.joined(place, self._script_ends_run)
            if self._tracker is not None:
                name = f"gradscope to {self.destination.name}"
                threading.Thread(target=self._work, name=name, daemon=True).start()
        except Exception as error:
            self._fail(error)

    def begin_end(self, run: TrainingRun) -> None:
        """Begin to send the rest of the run; the file is complete."""
        if self._tracker is None and self._failure is None:
            self._join()
        self._run = run
        self._end_soon()

    def wait(self) -> None:
        """Wait for the rest, at most ``PATIENCE`` seconds."""
        if self._tracker is not None:
            self._wait()

    @property
    def unsent(self) -> str | None:
        """Return a notice after the wait, if something was not sent."""
        name = self.destination.name
        if self._tracker is None:
            what = f"nothing was sent to {name}: {self._failure or self.destination.module.WITHOUT}"
        elif self._ended.is_set() and self._failure is None:
            left = self._after_end()
            if not left:
                return None
            what = f"{plural(left, 'step')} not sent to {name}: they came after its run's end"
        else:
            known = self._ended.is_set() and self._left  # of the last round
            rows = f"{plural(self._left, 'step')} not sent" if known else "not all was sent"
            interrupted = self._until is not None and self._left_time() > 0
            late = "interrupted" if interrupted else f"it took longer than {PATIENCE:g} s"
            what = f"{rows} to {name}: {self._failure or late}"
        # The working directory may be another by now.
        place = _PLACES.get(name, self.destination.place)
        return f"{what}. Later: gradscope export {self._path} --to {name} {place}"

    def _script_ends_run(self) -> None:
        """Send the rest before the script's own run in the tracker ends."""
        if os.getpid() == self._process and not self._ended.is_set():  # not in a forked process
            self._flush()
            self._end_soon()
            self._wait()

    def _end_soon(self) -> None:
        if self._until is None:
            self._until = time.monotonic() + PATIENCE
        self._ending.set()

    def _wait(self) -> None:
        """Wait until the rest is sent; print a message if that takes long and standard error is a
        terminal."""
        assert self._until is not None
        if self._ended.wait(min(_PAUSE, self._left_time())):
            return
        if not self._quiet and self._left_time() > 0:
            with contextlib.suppress(OSError, ValueError, AttributeError):
                if sys.stderr.isatty():
                    name, most = self.destination.name, f"{PATIENCE:g} s"
                    print(f"gradscope: sending the rest to {name}, up to {most}", file=sys.stderr)
        self._ended.wait(self._left_time())

    def _left_time(self) -> float:
        assert self._until is not None
        return max(0.0, self._until - time.monotonic())

    def _after_end(self) -> int:
        """Return the number of steps after the script ended its own run in the tracker."""
        try:
            with _reading, RunFile.open(self._path) as run:
                return self._unsent.left(run)
        except GradscopeError:
            return 0  # the notice on the file says it

    def _work(self) -> None:
        block_signals()
        pause, failures = _PAUSE, 0
        while True:
            last = self._ending.wait(pause)
            began = time.thread_time()
            try:
                if last and self._path.is_dir():
                    self._await_processes()
                self._round(last)
                self._failure, failures = None, 0
            except Exception as error:
                self._fail(error)
                failures += 1
            if last:
                self._ended.set()
                return
            took = time.thread_time() - began
            pause = max(took / _SHARE, min(_PAUSE * 2**failures, _LONGEST_PAUSE))

    def _round(self, last: bool) -> None:
        assert self._tracker is not None
        with _reading, RunFile.open(self._path) as run:
            news = self._unsent.read(run, complete=last)
            keeps = isinstance(self._tracker, KeepsFiles)
            page = self._page(run, self._run) if last and keeps and self._page else None
        self._left = len(news.rows)
        self._tracker.send(news.rows, news.alerts, last=last)
        self._unsent.sent(news)
        self._left = 0
        if page is not None and isinstance(self._tracker, KeepsFiles):
            attach(self._tracker, page)
        if last:
            self._tracker.close()

    def _await_processes(self) -> None:
        """Wait until the other processes have written the last step, for half of the time."""
        while self._left_time() > PATIENCE / 2:
            with _reading, RunFile.open(self._path) as run:
                step, sampled = run.written_by_all
                if step >= run.last_step and sampled >= max(run.sampled, default=0):
                    return
            time.sleep(_GLANCE)

    def _fail(self, error: Exception) -> None:
        lines = message_of(error).strip().splitlines() or [""]
        reason = f"{type(error).__name__}: {lines[0]}".rstrip(": ")
        # An address can have a password in it.
        reason = re.sub(r"//[^/@\s]*@", "//", reason)[:_MOST_CHARACTERS]
        self._failure = reason.rstrip(".")
        if not self._reported:
            self._reported = True
            self._report(f"sending to {self.destination.name} failed: {self._failure}")


class _ForkLock:
    """A lock that is held during each read of a run: a process must not fork while SQLite reads.

    https://www.sqlite.org/howtocorrupt.html#_carrying_an_open_database_connection_across_a_fork_
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held = False

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()

    def before_fork(self) -> None:
        """Wait for the end of a read, for a limited time."""
        self._held = self._lock.acquire(timeout=PATIENCE)

    def after_fork(self) -> None:
        """Allow reads again."""
        if self._held:
            self._held = False
            self._lock.release()


_reading = _ForkLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_reading.before_fork,
        after_in_parent=_reading.after_fork,
        after_in_child=_reading.after_fork,
    )
