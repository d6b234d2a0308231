"""Labels of module calls, and the colours of severities."""

from __future__ import annotations

from collections.abc import Iterable

from gradscope.typeset.text import plain

#: The tone of a severity; others have none.
TONES = {"error": "bad", "warning": "warn"}
#: The model itself, whose name is empty.
ROOT = "(root)"


def some_names(names: Iterable[str], at_most: int) -> str:
    """The first names, and how many more; one more is named too."""
    shown = [plain(name) for name in names]
    more = len(shown) - at_most
    return ", ".join(shown if more <= 1 else [*shown[:at_most], f"… {more} more"])


def label(name: str, call: int | None = 0, last: int | None = None) -> str:
    """A module's name as a reader sees it, with the call's number from the second call on.

    ``last`` is the last of several calls that one row stands for.
    """
    number = f" #{call}" if call else ""
    return (plain(name) or ROOT) + (number if last is None else f" #{call}…{last}")
