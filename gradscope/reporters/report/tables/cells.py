"""Entries and columns → the rows and cells of a table, whatever its rows are of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gradscope.reporters.report._view import View
from gradscope.reporters.report.tables.columns import Column, Entry, Row, ordered, parse_sort
from gradscope.reporters.report.tables.folding import span
from gradscope.typeset.numbers import count, plural
from gradscope.typeset.tables import Cell


def select(
    entries: Sequence[Entry[Row]], registry: Mapping[str, Column[Row]], view: View, noun: str
) -> tuple[list[Entry[Row]], str]:
    """The entries that the view wants, in its order, and a caption where it wants fewer."""
    chosen, by = list(entries), ""
    if view.sort:
        key, up = parse_sort(view.sort)
        if key in registry:
            chosen, by = ordered(chosen, registry[key], up), f"sorted by {view.sort}"
    total = len(chosen)
    if view.top is not None and view.top < total:
        shown = f"{count(view.top)} of {plural(total, noun)} shown"
        return chosen[: view.top], f"{shown}, {by}" if by else shown
    return chosen, by


def cells(
    columns: Sequence[Column[Row]],
    marked: Sequence[tuple[Row, ...]],
    entries: Sequence[Entry[Row]],
) -> tuple[tuple[Cell, ...], ...]:
    """A line of cells for each row to show; the marked rows are the entries' own."""
    return tuple(
        tuple(_cell(column, row, members) for column in columns)
        for rows, entry in zip(marked, entries, strict=True)
        for row, members in zip(rows, entry.members, strict=True)
    )


def _cell(column: Column[Row], row: Row, members: Sequence[Row]) -> Cell:
    if len(members) == 1 or not column.right:
        text = column.text(row)
        return Cell(text, column.tone(row, text))
    texts = [column.text(member) for member in members]
    tones = {column.tone(member, text) for member, text in zip(members, texts, strict=True)}
    worst = next((tone for tone in ("bad", "warn") if tone in tones), "")
    return Cell(span(texts, [column.rank(member) for member in members]), worst)


def folds(entries: Sequence[Entry[Row]]) -> list[str]:
    """The remark on folded rows, where there are any."""
    if all(len(members) == 1 for entry in entries for members in entry.members):
        return []
    return ["×n: n blocks that look the same, one after the other; a…b spans their values"]
