"""Values in plain words, and the complaint that the checks of this room make about them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from gradscope.config.texts import visible
from gradscope.errors import did_you_mean

#: The way to a value: mapping keys and list indices.
Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Complaint:
    """A problem of the config's data: it knows the key, and not yet the line."""

    path: Path
    message: str
    help: str | None = None
    at: Literal["key", "value"] = "value"
    notes: tuple[str, ...] = ()


def dotted(path: Path) -> str:
    """``("backward", "repeats")`` as ``backward.repeats``."""
    return visible(".".join(str(part) for part in path))


def shorten(text: str, width: int = 60) -> str:
    """One printable line of ``text``, at most ``width`` characters."""
    text = visible(text.replace("\n", "\\n"))
    return text if len(text) <= width else f"{text[: width - 1]}…"


def describe(value: Any) -> str:
    """What a value is, for the "found …" half of an error."""
    if value is None:
        return "nothing (null)"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, int | float):
        return f"the number {shorten(str(value), 40)}"
    if isinstance(value, str):
        return f'the text "{shorten(value)}"' if value else "an empty text"
    if isinstance(value, Mapping):
        if not value:
            return "an empty mapping"
        names = [f"`{shorten(str(key), 30)}`" for key in list(value)[:3]]
        more = ", …" if len(value) > 3 else ""
        return f"a mapping with the key{'s' * (len(value) > 1)} {', '.join(names)}{more}"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}" if value else "an empty list"
    return f"an object of type {type(value).__name__}"


def either(choices: Iterable[str]) -> str:
    """``a, b or c``."""
    *head, last = choices
    return f"{', '.join(head)} or {last}" if head else last


def unknown_key(
    path: Path,
    known: Iterable[str],
    *,
    given: Iterable[str] = (),
    help: str | None = None,
) -> Complaint:
    """The complaint about a key that nothing reads: the closest of the ``known`` ones that is not
    ``given`` already, or else ``help``, or else all of them."""
    known = list(known)
    word = str(path[-1])
    where = f" in `{dotted(path[:-1])}`" if len(path) > 1 else ""
    free = [key for key in known if key not in given]
    remedy = did_you_mean(word, free) or did_you_mean(word.lower(), free) or help
    if remedy is None:
        remedy = f"the keys {'here ' * bool(where)}are {', '.join(known)}"
    return Complaint(path, f"unknown key `{shorten(word)}`{where}", remedy, "key")
