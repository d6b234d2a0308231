"""Where in the script something happens."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from gradscope.explain.shared.frames import nearest, shown


@dataclass(frozen=True, slots=True)
class ScriptLine:
    """A line of a file."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{shown(self.file)}:{self.line}"


def script_line() -> ScriptLine | None:
    """The innermost line of the script's own that runs now; else a library's."""
    frame = nearest(sys._getframe(1))
    return None if frame is None else ScriptLine(frame.f_code.co_filename, frame.f_lineno)
