"""Methods as text for people: what each shows, its options and its paper."""

from __future__ import annotations

from collections.abc import Sequence

from gradscope.records.saliency import MethodText
from gradscope.reporters.text_view import TextView
from gradscope.typeset.console import printed, table_lines
from gradscope.typeset.tables import Cell, Heading, Table
from gradscope.typeset.text import plain

suffix = ".txt"

_COLUMNS = (
    Heading("method", False),
    Heading("what the map shows", False, 60, prose=True),
    Heading("options", False, 90, prose=True),
    Heading("paper", False, 50),
)


def render(methods: Sequence[MethodText], view: TextView) -> str:
    """One row for each method."""
    rows = tuple(
        tuple(Cell(plain(text)) for text in (m.name, m.summary, ", ".join(m.options), m.paper))
        for m in methods
    )
    table = table_lines(Table("methods", _COLUMNS, rows), view.width)
    return printed(table, width=view.width, color=view.color)
