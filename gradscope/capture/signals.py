"""Exceptions that a signal handler of the script raises while gradscope's code happens to run."""

from __future__ import annotations

import signal
from functools import partial
from types import CodeType
from typing import Any


def raised_by_a_handler(error: BaseException) -> bool:
    """Whether a handler that the script set raised this: it is the script's, wherever it came."""
    handlers = _handlers()
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in handlers:
            return True
        trace = trace.tb_next
    return False


def _handlers() -> set[CodeType]:
    """The code of all handlers that are written in Python."""
    found = set()
    for number in signal.valid_signals():
        handler: Any = signal.getsignal(number)
        while isinstance(handler, partial):
            handler = handler.func
        for function in (handler, getattr(type(handler), "__call__", None)):  # noqa: B004
            code = getattr(getattr(function, "__func__", function), "__code__", None)
            if isinstance(code, CodeType):
                found.add(code)
    return found
