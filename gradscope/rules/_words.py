"""Formats words for findings: numbers, shares, lists of names, an answer's advice as a sentence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gradscope.typeset.numbers import number, plural

__all__ = ["either", "listed", "number", "others", "percent", "plural", "sentence"]


def percent(share: float) -> str:
    """Format a share from 0 to 1; it is never rounded to 0 % or 100 %."""
    if share in (0, 1):
        return f"{share * 100:.0f} %"
    if share < 0.001:
        return "<0.1 %"
    return f"{100 * share:.1f} %" if share < 0.999 else ">99.9 %"


def listed(names: Sequence[str], *, at_most: int = 3) -> str:
    """List ``a``, ``b`` and the number of further ones; a name of several words is not quoted."""
    shown = ", ".join(name if " " in name else f"`{name}`" for name in names[:at_most])
    more = len(names) - at_most
    return f"{shown} and {plural(more, 'more', 'more')}" if more > 0 else shown


def either(choices: Iterable[str]) -> str:
    """``a, b or c``."""
    *head, last = choices
    return f"{', '.join(head)} or {last}" if head else last


def others(count: int, noun: str) -> str:
    """Return a count of others in words: `` (and 3 layers more)``; "" for none."""
    return f" (and {plural(count, noun)} more)" if count else ""


def sentence(text: str) -> str:
    """Write ``use it, or remove it`` as a sentence."""
    text = text.strip()
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith(('.', '!', '?')) else '.'}"
