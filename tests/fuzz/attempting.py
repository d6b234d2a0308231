"""One attempt in a folder of its own, within a time, and what was wrong with how it ended."""

from __future__ import annotations

import os
import resource
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from hostile.commands import gradscope

from fuzz.inputs import Attempt

#: Seconds after which a command hangs, and how much memory it gets.
SECONDS = 60
BYTES = 4 << 30


def faults(attempt: Attempt) -> list[str]:
    """What the contract forbids and the attempt led to."""
    with tempfile.TemporaryDirectory() as name, _inside(Path(name)) as folder:
        for file, text in attempt.files.items():
            (folder / file).write_text(text, encoding="utf-8", errors="surrogatepass")
        try:
            with _time(SECONDS), _memory(BYTES):
                found = gradscope(attempt.words).faults()
        except TimeoutError:
            return [f"no end within {SECONDS} s"]
        left = sorted(path.name for path in folder.iterdir() if path.name not in attempt.files)
        return found + [f"left `{name}`" for name in left if name != "__pycache__"]


@contextmanager
def _inside(folder: Path) -> Iterator[Path]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield folder
    finally:
        os.chdir(before)


@contextmanager
def _memory(more: int) -> Iterator[None]:
    """At most so many bytes of address space beyond those that there are."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + more
    resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@contextmanager
def _time(seconds: int) -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
