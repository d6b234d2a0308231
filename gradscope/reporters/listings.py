"""The methods of saliency, and the keys of a config, as text for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from gradscope.records.saliency import MethodText
from gradscope.reporters.views import TextView
from gradscope.typeset.console import STYLES, dimmed, printed, table_lines
from gradscope.typeset.tables import Cell, Heading, Table
from gradscope.typeset.text import break_words, plain

if TYPE_CHECKING:  # the command of methods reads no config
    from gradscope.config.schema import KeyText

_COLUMNS = (
    Heading("method", False),
    Heading("what the map shows", False, 60, prose=True),
    Heading("options", False, 90, prose=True),
    Heading("paper", False, 50),
)


def methods(listed: Sequence[MethodText], view: TextView) -> str:
    """Return one row for each method: its summary, its options and its paper."""
    rows = tuple(
        tuple(Cell(plain(text)) for text in (m.name, m.summary, ", ".join(m.options), m.paper))
        for m in listed
    )
    table = table_lines(Table("methods", _COLUMNS, rows), view.width)
    return printed(table, width=view.width, color=view.color)


_MARGIN = 4


def keys(listed: Iterable[KeyText], view: TextView) -> str:
    """Return a paragraph for each key: its name, its form, its default, and its meaning.

    The keys of a group are below it.
    """
    return printed(_key_lines(listed, view.width), width=view.width, color=view.color)


def _key_lines(listed: Iterable[KeyText], width: int | None) -> Iterator[Text]:
    room = None if width is None else max(1, width - _MARGIN)
    for key in listed:
        facts = f"{key.takes}; default {key.default}" if key.default else key.takes
        head, *rest = break_words(f"{key.name}: {facts}", room)
        yield Text.assemble((key.name, STYLES["head"]), (head[len(key.name) :], "dim"))
        yield from (Text(" " * _MARGIN + line, "dim") for line in rest)
        yield from (Text(" " * _MARGIN + line) for line in break_words(key.description, room))
    yield Text()
    yield from dimmed("Set one in the config, or on the command line: `steps=3`.", width)
