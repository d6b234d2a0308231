"""Options of a text without a selection: width and colour."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TextView:
    """``width`` None is unlimited, as in a pipe."""

    width: int | None = None
    color: bool = False
