"""Models one after another in a worker process: what crashes or hangs ends its worker, not the run.

Each result is a line of JSON. A run that resumes passes over what already agreed.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import resource
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from zoo.entries import Entry

#: A worker makes room for a fresh one after so many models: libraries keep caches.
_MODELS = 40
#: What the worker calls with group and label, to hold a model to account or to look for findings.
CHECK, DIAGNOSE = "zoo.attempts:attempt", "zoo.attempts:diagnosis"

Guard = Callable[[], AbstractContextManager[Any]]


def known(path: Path) -> dict[str, dict[str, Any]]:
    """The results in a file by label: of each model the last line of each kind."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    results: dict[str, dict[str, Any]] = {}
    for data in map(json.loads, filter(None, lines)):
        results[data["label"]] = results.get(data["label"], {}) | data
    return results


def run(
    entries: Iterable[Entry],
    *,
    timeout: float,
    memory: float,
    attempt: str = CHECK,
    guard: Guard = nullcontext,
) -> Iterator[dict[str, Any]]:
    """The result of each entry, in order.

    Args:
        entries: the models.
        timeout: seconds that one may take.
        memory: gibibytes that the worker may allocate.
        attempt: module and function that the worker calls.
        guard: entered around each model, for who shares the machine.
    """
    worker: _Worker | None = None
    try:
        for entry in entries:
            if worker is None or worker.done >= _MODELS:
                if worker is not None:
                    worker.stop()
                worker = _Worker(memory, attempt)
            with guard():
                data = worker.check(entry, timeout)
            if data["outcome"] in ("timeout", "died"):
                worker.stop()
                worker = None
            yield data
    finally:
        if worker is not None:
            worker.stop()


class _Worker:
    """A process that checks one model after another."""

    def __init__(self, memory: float, attempt: str) -> None:
        context = multiprocessing.get_context("spawn")
        self.ours, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(target=_work, args=(theirs, memory, attempt))
        self.process.start()
        theirs.close()
        self.done = 0
        self.ready = False

    def check(self, entry: Entry, timeout: float) -> dict[str, Any]:
        """The entry's result, or how the worker ended over it."""
        began = time.perf_counter()
        self.done += 1
        try:
            if not self.ready:  # its imports are no model's time
                self.ready = bool(self.ours.recv())
            self.ours.send((entry.group, entry.label))
            if self.ours.poll(timeout):
                data: dict[str, Any] = self.ours.recv()
                return data
            outcome, reason = "timeout", f"took more than {timeout:g} s"
        except (EOFError, OSError):
            self.process.join(5)
            outcome, reason = "died", f"the process ended with {self.process.exitcode}"
        seconds = round(time.perf_counter() - began, 2)
        facts = {"label": entry.label, "group": entry.group, "kind": entry.kind}
        facts |= {"family": entry.family, "outcome": outcome, "reasons": [reason]}
        return {**facts, "seconds": seconds}

    def stop(self) -> None:
        """End the process, whatever it is doing."""
        self.ours.close()
        self.process.join(1)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def _work(pipe: Connection, memory: float, attempt: str) -> None:
    """In the worker: check what is named, until the pipe closes."""
    limit = int(memory * 2**30)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    module, _, name = attempt.partition(":")
    function = getattr(importlib.import_module(module), name)
    pipe.send(True)
    while True:
        try:
            group, label = pipe.recv()
        except EOFError:
            return
        pipe.send(function(group, label))
