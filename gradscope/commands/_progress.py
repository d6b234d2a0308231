"""A line on the terminal with the current stage, once it has taken a while."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gradscope.progress import Stage, handled_by
from gradscope.typeset.text import plain

#: Seconds after which a reader wonders whether anything happens.
PATIENCE = 2.0


@contextmanager
def shown_progress() -> Iterator[None]:
    """Within this, what takes longer shows on standard error, where that is a terminal.

    The line goes when the block ends: it is no part of the result. What the user's code prints
    is above it, for which the line takes the place of ``sys.stdout``: the block is inside
    of ``keep_stdout_clean``.
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
        """Remember, and draw where drawing has begun."""
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
        """Take the line away."""
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
