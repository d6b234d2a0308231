"""Reports progress to a handler, if there is one (a command on a terminal).

A function that may take seconds calls ``begin``. ``count`` reports how far it is, and ``within``
names the work around it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stage:
    """The running work, outermost first, and the number of finished items, if known."""

    words: tuple[str, ...]
    done: int | None = None
    total: int | None = None


_handler: ContextVar[Callable[[Stage], None] | None] = ContextVar("handler", default=None)
_around: ContextVar[tuple[str, ...]] = ContextVar("around", default=())
_now: ContextVar[str] = ContextVar("now", default="")


def begin(what: str) -> None:
    """Report the start of some work."""
    _now.set(what)
    _send()


def count(done: int, total: int) -> None:
    """Report that so many items of the latest work are done."""
    _send(done, total)


@contextmanager
def within(what: str) -> Iterator[None]:
    """Mark work that begins in this block as a part of ``what``."""
    token = _around.set((*_around.get(), what))
    begin("")
    try:
        yield
    finally:
        _around.reset(token)


@contextmanager
def handled_by(handler: Callable[[Stage], None]) -> Iterator[None]:
    """Call ``handler`` at each stage in the block."""
    token = _handler.set(handler)
    try:
        yield
    finally:
        _handler.reset(token)


def _send(done: int | None = None, total: int | None = None) -> None:
    handler = _handler.get()
    if handler is not None:
        handler(Stage((*_around.get(), _now.get()), done, total))
