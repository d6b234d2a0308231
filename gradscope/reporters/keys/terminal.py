"""A paragraph for each key: its name, what it takes, its default, and what it means."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.text import Text

from gradscope.config.keys import KeyText
from gradscope.reporters.text_view import TextView
from gradscope.typeset.console import STYLES, dimmed, printed
from gradscope.typeset.text import break_words

suffix = ".txt"

_MARGIN = 4


def render(keys: Iterable[KeyText], view: TextView) -> str:
    """Every key; those of a group are below it."""
    return printed(_lines(keys, view.width), width=view.width, color=view.color)


def _lines(keys: Iterable[KeyText], width: int | None) -> Iterator[Text]:
    room = None if width is None else max(1, width - _MARGIN)
    for key in keys:
        facts = f"{key.takes}; default {key.default}" if key.default else key.takes
        head, *rest = break_words(f"{key.name}: {facts}", room)
        yield Text.assemble((key.name, STYLES["head"]), (head[len(key.name) :], "dim"))
        yield from (Text(" " * _MARGIN + line, "dim") for line in rest)
        yield from (Text(" " * _MARGIN + line) for line in break_words(key.description, room))
    yield Text()
    yield from dimmed("Set one in the config, or on the command line: `steps=3`.", width)
