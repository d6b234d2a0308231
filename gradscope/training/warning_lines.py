"""Gives a warning the line of the script where gradscope called the function in its place.

Python takes the line from the frames, and shows a warning once for each line. With a frame of
gradscope between the script and a function, the line would be gradscope's, and a warning that was
shown before would come again.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from types import FrameType
from typing import Any

import torch.overrides

from gradscope.capture.hooks import in_between, replace
from gradscope.explain.shared.frames import is_ours

_DISPATCH = torch.overrides.handle_torch_function.__code__


def observe_warnings(patches: ExitStack) -> None:
    """Show warnings with lines of the script, until the stack is closed."""
    replace(patches, warnings, "_showwarnmsg", _at_the_script)


def _at_the_script(original: Callable[..., Any]) -> Callable[..., Any]:
    def showwarnmsg(message: warnings.WarningMessage) -> None:
        between = _in_between(message, sys._getframe(1))
        line = None if between is None else _caller(between)
        if between is None or line is None:
            original(message)
            return
        # It is not known as shown at this line.
        between.f_globals.pop("__warningregistry__", None)
        warnings.onceregistry.pop((str(message.message), message.category), None)  # type: ignore[attr-defined]
        warnings.warn_explicit(
            message.message,
            message.category,
            line.f_code.co_filename,
            line.f_lineno,
            module=line.f_globals.get("__name__") or "<unknown>",
            registry=line.f_globals.setdefault("__warningregistry__", {}),
            source=message.source,
        )

    return showwarnmsg


def _in_between(message: warnings.WarningMessage, frame: FrameType | None) -> FrameType | None:
    """Return the frame of a warning, if it is one between the script and a function."""
    if not is_ours(message.filename):
        return None
    while frame is not None:
        if frame.f_code.co_filename == message.filename and frame.f_lineno == message.lineno:
            return frame if frame.f_code in in_between else None
        frame = frame.f_back
    return None


def _caller(frame: FrameType | None) -> FrameType | None:
    """Return the frame that called the function, without gradscope's and PyTorch's dispatch."""
    while frame is not None:
        if frame.f_code is _DISPATCH:  # the function itself called it
            frame = frame.f_back
        elif not is_ours(frame.f_code.co_filename):
            return frame
        frame = frame and frame.f_back
    return None
