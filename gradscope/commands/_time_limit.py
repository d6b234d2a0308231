"""``--timeout``: what builds and runs a model ends after a time, and says where it was."""

from __future__ import annotations

import _thread
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from gradscope.errors import Interrupted, OptionError, TimeIsUp, visible
from gradscope.explain.shared.frames import nearest, shown

#: Seconds that running code has to stop, once it was interrupted.
GRACE = 10.0


@contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """Within this, what runs longer than so many seconds is interrupted as Ctrl-C would do it.

    What does not stop then, as it swallows the interrupt or waits in C, ends the process.

    Raises:
        OptionError: that is no time.
        Interrupted: the time was up; it says where the program was then.
    """
    if seconds is None:
        yield
        return
    if not seconds > 0:
        raise OptionError(f"`--timeout {seconds:g}` leaves no time", help="give more than 0")
    runner, ended = threading.get_ident(), threading.Event()
    reasons: list[TimeIsUp] = []

    def watch() -> None:
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
    watcher = threading.Thread(target=watch, name="time limit", daemon=True)
    watcher.start()
    try:
        yield
    except TimeIsUp as reason:
        raise Interrupted(str(reason)) from None
    finally:
        ended.set()
        watcher.join()
        signal.signal(signal.SIGINT, before)


def _place(frame: FrameType) -> str:
    """The user's line that runs, else a library's."""
    user = nearest(frame)
    if user is None:
        return ""
    return f", at {shown(user.f_code.co_filename)}:{user.f_lineno} in `{user.f_code.co_qualname}`"


def _interrupt(thread: int) -> None:
    """As Ctrl-C would; where the system can, it wakes a thread that sleeps."""
    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(thread, signal.SIGINT)
    else:
        _thread.interrupt_main()


def _end(words: str) -> None:
    """The process ends here and now: nothing is being written while a model runs."""
    if sys.__stderr__ is not None:
        print(visible(words), file=sys.__stderr__, flush=True)
    os._exit(Interrupted.exit_code)
