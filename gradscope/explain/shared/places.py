"""Where an operation ran, as a user is told of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    """Where an operation ran: the innermost module call, and the user's file and line."""

    module: str | None = None
    call: int | None = None
    file: str | None = None
    line: int | None = None
