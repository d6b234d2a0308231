"""What a module's call is called and how a severity looks, wherever they are shown."""

from __future__ import annotations

from gradscope.typeset.text import plain

#: The tone of a severity; what is not there has none.
TONES = {"error": "bad", "warning": "warn"}
#: The model itself, whose name is empty.
ROOT = "(root)"


def label(name: str, call: int | None = 0) -> str:
    """A module's name as a reader sees it, with the call's number from the second call on."""
    return (plain(name) or ROOT) + (f" #{call}" if call else "")
