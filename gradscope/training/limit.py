"""Ends a script before its end: after so many steps, or so many seconds."""

from __future__ import annotations

import _thread
import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator

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
