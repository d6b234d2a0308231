"""Calls nested until Python's limit: which function calls itself, and where."""

from __future__ import annotations

import traceback
from collections import Counter
from dataclasses import dataclass
from types import FrameType, TracebackType

from torch import nn

from gradscope.explain.shared.frames import in_library, is_hidden, shown
from gradscope.records.run import Frame

_OFTEN = 20  # as often a function is nested in itself only by calling itself


@dataclass(frozen=True, slots=True)
class Recursion:
    """The line from which a function was entered again and again, and the function's module."""

    location: str
    module: nn.Module | None
    details: tuple[str, ...]


def recursion(failure: BaseException) -> Recursion | None:
    """What calls itself without end; None where no line of the user's was seen often."""
    if not isinstance(failure, RecursionError):
        return None
    frames = _users(failure.__traceback__)
    often = Counter((frame.f_code, line) for frame, line in frames).most_common(1)
    if not often or often[0][1] < _OFTEN:
        return None
    (code, line), count = often[0]
    frame = next(frame for frame, _ in frames if frame.f_code is code)
    owner = frame.f_locals.get("self")
    location = f"{shown(code.co_filename)}:{line}"
    fact = f"`{code.co_qualname}` came to {location} {count} times, each inside of the one before."
    return Recursion(location, owner if isinstance(owner, nn.Module) else None, (fact,))


def once(frames: list[Frame]) -> list[Frame]:
    """Each line once, where it came first: the rest repeats."""
    return list(dict.fromkeys(frames))


def _users(trace: TracebackType | None) -> list[tuple[FrameType, int]]:
    found = [(f, n) for f, n in traceback.walk_tb(trace) if not is_hidden(f.f_code.co_filename)]
    own = [(f, n) for f, n in found if not in_library(f.f_code.co_filename)]
    return own or found
