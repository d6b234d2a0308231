"""One command in its own folder, within a time, and what was wrong with how it ended."""

from __future__ import annotations

import json
import os
import resource
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from unittest import mock

from hostile.commands import gradscope

#: Seconds after which a command hangs, and how much memory it gets.
SECONDS = 60
BYTES = 4 << 30
#: Where a command that writes a file is asked to write it.
OUTPUT = "made"


@dataclass(frozen=True)
class Attempt:
    """A command, the files that lie where it runs, and what differs in its environment."""

    kind: str
    words: tuple[str, ...]
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)


def faults(attempt: Attempt) -> list[str]:
    """Return the attempt's violations of the contract."""
    with tempfile.TemporaryDirectory() as name, _inside(Path(name)) as folder:
        for file, content in attempt.files.items():
            path = folder / file
            path.parent.mkdir(parents=True, exist_ok=True)
            text = isinstance(content, str)
            path.write_bytes(content.encode("utf-8", "surrogatepass") if text else content)
        start = time.monotonic()
        with mock.patch.dict(os.environ, attempt.environment), _time(SECONDS), _memory(BYTES):
            found = gradscope(attempt.words).faults()
        # A config's line is quoted with its tabs: the caret below it would land elsewhere.
        found = [fault for fault in found if fault != "'\\t' on standard error"]
        if time.monotonic() - start >= SECONDS:
            found.append(f"no end within {SECONDS} s")
        for path in sorted(folder.rglob("*")):
            found += _left(path.relative_to(folder), attempt.files)
        return found


def _left(path: Path, given: Mapping[str, str | bytes]) -> list[str]:
    """Return the faults of a file that lies there at the end."""
    if path.is_dir() or path.as_posix() in given or "__pycache__" in path.parts:
        return []
    if not path.name.startswith(OUTPUT):
        return [f"left `{path}`"]
    if path.suffix != ".json":
        return [] if path.stat().st_size else [f"an empty `{path}`"]
    try:
        json.loads(path.read_bytes())
    except ValueError:
        return [f"half of `{path}`"]
    return []


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
    """Ctrl-C after a time; whoever swallows it is found by the clock."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
