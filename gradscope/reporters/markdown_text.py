"""Text that GitHub Markdown shows as it is, and that reads well unrendered."""

from __future__ import annotations

import re
from collections.abc import Iterable


def escaped(text: str) -> str:
    """Plain text, in a table too."""
    text = re.sub(r"[\\`*<>|~&$]|(?<!\w)_|_(?!\w)|#(?=\w)", r"\\\g<0>", text)
    # Brackets make a link only where something follows them: shapes stay as they are.
    return re.sub(r"[\[\]]", r"\\\g<0>", text) if re.search(r"\][(\[:]", text) else text


def sentence(text: str) -> str:
    """Prose: its code spans stay what they are."""
    parts = re.split(r"(`[^`]+`)", text)
    return "".join(part if i % 2 else escaped(part) for i, part in enumerate(parts))


def code(text: str) -> str:
    """A code span; a table still reads a bare ``|`` in it as a border."""
    ticks = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    space = " " if text.startswith("`") or text.endswith("`") else ""
    # A code span drops plain spaces at its ends: the indent of a further tensor's row must stay.
    kept = re.sub(r"^ +", lambda m: "\u00a0" * len(m[0]), text)
    return f"{ticks}{space}{kept}{space}{ticks}".replace("|", "\\|")


def fenced(lines: Iterable[str]) -> str:
    """A block of code whose fence is longer than any in it."""
    body = "\n".join(lines)
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", body)), default=0))
    return f"{fence}text\n{body}\n{fence}"
