"""Work of the processes that the tests start, kill and fork."""

from __future__ import annotations

import itertools
import os
import sys
import time
from pathlib import Path

from gradscope.runfile.writer import RunWriter
from runfile.made import RUN, sample, step


def write_until_killed(path: Path, log: Path) -> None:
    """Steps as fast as they come, every fifth with a sample; ``log`` is there from the first."""
    writer = RunWriter(path, RUN, keep=64)
    for number in itertools.count(1):
        wanted = number % 5 == 0
        writer.add(step(number, sampled=wanted), *[sample(number, calls=5)] * wanted)
        if number == 1:
            log.write_text("begun", encoding="utf-8")
        time.sleep(0.0005)


def leave(path: Path, how: str) -> None:
    """End with a writer that nobody finished."""
    writer = RunWriter(path, RUN)
    for number in range(1, 1001):
        writer.add(step(number))
    if how == "exit":
        sys.exit(3)
    if how == "exception":
        raise ValueError("of the script")
    if how == "atexit":
        import atexit

        # As a script that trains until the last moment: its handler runs before the writer's.
        atexit.register(lambda: [writer.add(step(number)) for number in range(1001, 1101)])


def wait_for_signals(path: Path) -> None:
    """As a script waits for the signal with which its cluster says that its time is over."""
    import signal

    writer = RunWriter(path, RUN)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    for number in range(1, 51):
        writer.add(step(number))
        os.kill(os.getpid(), signal.SIGUSR1)
        assert signal.sigwait([signal.SIGUSR1]) == signal.SIGUSR1
    writer.finish(RUN)


def fork(path: Path, how: str) -> None:
    """Fork while steps are written; the children add to the writer, and end in one way or other."""
    import gc
    import threading

    writer = RunWriter(path, RUN)
    children = []
    for number in range(1, 201):
        writer.add(step(number), *[sample(number)] * (number % 20 == 0))
        if number % 10:
            continue
        child = os.fork()
        if child == 0:
            assert threading.active_count() == 1
            writer.add(step(10_000 + number))
            if how == "finish":
                writer.finish(RUN)
            if how == "forget":
                del writer
                gc.collect()
            if how == "leave":
                os._exit(0)
            sys.exit(0)  # its handlers run, and everything in it is torn down
        children.append(child)
    for child in children:
        assert os.waitpid(child, 0)[1] == 0
    assert writer.failure is None
    writer.finish(RUN)
    assert writer.failure is None
