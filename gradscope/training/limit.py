"""Ends a script early, after a number of steps or seconds; or runs it so far in a separate process,
as ``run`` does, to get a verdict.

The result is written by the process that started the script, whatever the script does to its own
process and streams.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from gradscope.training.launch import Script

#: Seconds that a script has beyond its time to come to its next step or backward.
GRACE = 10.0
#: A script without steps ends after this multiple of backwards.
_BACKWARDS = 10


class Limit:
    """A limit on the steps or seconds of a script, checked at each step and backward.

    Attributes:
        reached: the option that ends the script; None before that.

    Args:
        steps: the number of steps; None: unlimited.
        seconds: the time from now on; None: unlimited.
        clock: returns seconds.
    """

    def __init__(
        self,
        steps: int | None = None,
        seconds: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.reached: str | None = None
        self._steps, self._seconds, self._clock = steps, seconds, clock
        self._began, self._backwards = clock(), 0

    def step_ended(self, number: int) -> bool:
        """Note the end of a step; return True if the script must end."""
        if self._steps is not None and number >= self._steps:
            self._end_by_steps()
        return self._is_over()

    def backward_begins(self, number: int) -> bool:
        """Note the start of a backward after so many steps; return True if the script must end."""
        if not number and self._steps is not None:
            self._backwards += 1
            if self._backwards > _BACKWARDS * self._steps:
                self._end_by_steps()
        return self._is_over()

    def _end_by_steps(self) -> None:
        self.reached = self.reached or f"--steps {self._steps}"

    def _is_over(self) -> bool:
        if self._seconds is not None and self._clock() - self._began >= self._seconds:
            self._end_by_time()
        return self.reached is not None

    def _end_by_time(self) -> None:
        self.reached = self.reached or f"--seconds {self._seconds:g}"

    @contextlib.contextmanager
    def interrupting(self, grace: float = GRACE) -> Iterator[None]:
        """Interrupt the running thread in the block if its time is long over: it makes no step
        then, because it loads data or waits.
        """
        if self._seconds is None:
            yield
            return
        runner = threading.get_ident()

        def interrupt() -> None:
            self._end_by_time()
            if hasattr(signal, "pthread_kill"):
                signal.pthread_kill(runner, signal.SIGINT)
            else:
                _thread.interrupt_main()

        timer = threading.Timer(min(self._seconds + grace, threading.TIMEOUT_MAX), interrupt)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


#: Number of samples that suffices for nearly every rule; in fewer than three steps they are too
#: near.
_SAMPLES, _LEAST_EVERY = 16, 3
#: Number of last bytes kept of a failed script's standard error.
_MOST_BYTES = 1 << 16
#: Seconds between checks if the script is to end.
_ASKED = 0.3


@dataclass(frozen=True, slots=True)
class Trial:
    """Settings of a script's trial.

    Attributes:
        script: the script.
        steps, seconds: the limits after which it is ended.
        every: every Nth step is sampled; None: chosen from the number of steps.
        output: a descriptor for the script's output; None: nowhere.
        options: further options of ``gradscope run``.
        folder: the script's working folder; None: this process's.
        environment: additional environment variables.
        reads: True if it reads this process's standard input; else its input is empty.
        ended: called a few times a second; returns True if the script must end at once.
    """

    script: Script
    steps: int = 50
    seconds: float = 60.0
    every: int | None = None
    output: int | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    folder: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    reads: bool = True
    ended: Callable[[], bool] | None = None

    @property
    def sample_every(self) -> int:
        """The steps between two samples."""
        return self.every or max(_LEAST_EVERY, self.steps // _SAMPLES)

    def command(self, run: Path) -> list[str]:
        """Return the command of the process that records to this file."""
        options = {
            "-o": run,
            "--every": self.sample_every,
            "--steps": self.steps,
            "--seconds": f"{self.seconds:g}",
            **self.options,
        }
        words = [str(word) for pair in options.items() for word in pair]
        module = ["-m"] if self.script.is_module else []
        script = [*module, self.script.name, *self.script.arguments]
        # The run's file is later moved or deleted, so no capsule may be beside it.
        words += ["--no-explain-spikes", "--quiet"]
        return [sys.executable, "-m", "gradscope", "run", *words, *script]


@dataclass(slots=True)
class Tried:
    """Result of a script's trial.

    Attributes:
        run: the file, if there is one; it is gone when the trial ends.
        code: the exit code of the process; below 0, the signal that ended it.
        errors: the end of its standard error, if that was not shown.
        overdue: True if it was killed because it did not end in its time.
        interruption: the interruption that ended the trial before the script.
    """

    run: Path
    code: int = 0
    errors: str = ""
    overdue: bool = False
    interruption: KeyboardInterrupt | None = None

    @property
    def ending(self) -> str:
        """Describe the end of the process: "exit code 2", "SIGKILL"."""
        with contextlib.suppress(ValueError):
            if self.code < 0:
                return signal.Signals(-self.code).name
        return f"exit code {self.code}"


@contextlib.contextmanager
def tried(trial: Trial) -> Iterator[Tried]:
    """Run the script, wait for its end, and keep its file until the context ends.

    Raises:
        OSError: no file can be written, or no process started.
    """
    with (
        tempfile.TemporaryDirectory(prefix="gradscope-", ignore_cleanup_errors=True) as folder,
        tempfile.TemporaryFile() as errors,
    ):
        found = Tried(Path(folder) / "run.db")
        process = subprocess.Popen(
            trial.command(found.run),
            cwd=trial.folder,
            env={**os.environ, **trial.environment},
            stdin=None if trial.reads else subprocess.DEVNULL,
            stdout=subprocess.DEVNULL if trial.output is None else trial.output,
            stderr=errors if trial.output is None else trial.output,
        )
        # It ends itself when its time is up, or else soon after.
        patience = trial.seconds + 3 * GRACE
        try:
            found.code = _wait(process, patience, trial.ended)
        except subprocess.TimeoutExpired:
            found.overdue = True
        except KeyboardInterrupt as error:
            found.interruption = error
            if str(error):  # a signal to this process alone; Ctrl-C reaches both
                process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                found.code = process.wait(GRACE)
        finally:
            if process.poll() is None:
                process.kill()
                found.code = process.wait()
        found.errors = _last(errors)
        yield found


def _wait(
    process: subprocess.Popen[bytes], patience: float, ended: Callable[[], bool] | None
) -> int:
    """Return the exit code of the process, after its own end or after ``ended`` made it end.

    Raises:
        subprocess.TimeoutExpired: it has not ended in that time.
    """
    until = time.monotonic() + patience
    while ended is not None:
        if ended():
            process.terminate()
            break
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(min(_ASKED, patience))
        if time.monotonic() > until:
            raise subprocess.TimeoutExpired(process.args, patience)
    return process.wait(patience)


def _last(file: IO[bytes]) -> str:
    """Return the end of a file, from the beginning of a line."""
    size = file.seek(0, 2)
    file.seek(max(0, size - _MOST_BYTES))
    text = file.read().decode("utf-8", "replace")
    return text if size <= _MOST_BYTES else text.partition("\n")[2]
