"""The line of an operation, and its text."""

from __future__ import annotations

from dataclasses import dataclass

from gradscope.explain.shared.frames import shown, source


@dataclass(frozen=True, slots=True)
class CallSite:
    """Where an operation ran: the innermost module call, and the user's file and line."""

    module: str | None = None
    call: int | None = None
    file: str | None = None
    line: int | None = None

    @property
    def location(self) -> str | None:
        """``net.py:19``, where the line is known."""
        return f"{shown(self.file)}:{self.line}" if self.file and self.line else None

    @property
    def code(self) -> str:
        """The text of the line."""
        return (source(self.file, self.line) or "") if self.file and self.line else ""

    @property
    def at(self) -> str:
        """`` at net.py:19``; nothing without a line."""
        return f" at {self.location}" if self.location else ""

    @property
    def at_code(self) -> str:
        """The same with the line itself: `` at net.py:19 (`x = x * 0`)``."""
        return self.at + (f" (`{self.code}`)" if self.code else "")

    @property
    def within(self) -> str:
        """`` in `block` ``: the module that it belongs to."""
        return f" in `{self.module}`" if self.module else ""
