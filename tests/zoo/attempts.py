"""One model by its label: its result as a line of JSON, whatever it does."""

from __future__ import annotations

import functools
import gc
import time
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import torch

from zoo.checks import Result, check
from zoo.diagnosing import findings
from zoo.entries import Entry, all_entries


@functools.cache
def _entries(group: str) -> dict[str, Entry]:
    return {entry.label: entry for entry in all_entries([group])}


def attempt(group: str, label: str) -> dict[str, Any]:
    """The result of the entry; what it raised is its reason."""
    began = time.perf_counter()

    def run(entry: Entry) -> dict[str, Any]:
        try:
            result = check(entry)
        except Exception as error:
            result = Result(entry.label, entry.group, entry.kind, entry.family, "raised")
            result.reasons = [_said(error)]
            result.seconds = round(time.perf_counter() - began, 2)
        return result.data()

    return _quietly(run, group, label)


def diagnosis(group: str, label: str) -> dict[str, Any]:
    """Return the rules' findings in the entry."""

    def run(entry: Entry) -> dict[str, Any]:
        try:
            return {"outcome": "ok", "reasons": [], **findings(entry)}
        except Exception as error:
            return {"outcome": "raised", "reasons": [_said(error)]}

    return _quietly(run, group, label)


def _quietly(run: Callable[[Entry], dict[str, Any]], group: str, label: str) -> dict[str, Any]:
    entry = _entries(group)[label]
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data = run(entry)
    gc.collect()
    return data


def _said(error: Exception) -> str:
    """The exception's first lines, and where it came from."""
    first = " ".join(str(error).split())[:400]
    frame = traceback.extract_tb(error.__traceback__)[-1]
    place = "/".join(frame.filename.split("/")[-3:])
    return f"{type(error).__name__}: {first} ({place}:{frame.lineno})"
