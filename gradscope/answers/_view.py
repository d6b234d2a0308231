"""How answers are to be shown."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AnswerView:
    """``width`` None is unlimited."""

    width: int | None = None
    color: bool = False
