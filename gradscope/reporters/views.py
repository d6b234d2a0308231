"""Options of a text: how wide, which tables, which rows and columns."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gradscope.charts.maps import Map
from gradscope.charts.panels import Panel
from gradscope.records.report import RuleText


@dataclass(frozen=True, slots=True)
class TextView:
    """``width`` None is unlimited, as in a pipe."""

    width: int | None = None
    color: bool = False


@dataclass(frozen=True, slots=True)
class View:
    """Holds the display options of a report: columns, rows, width.

    ``width`` None is unlimited, as in a pipe. ``sort`` is a column, with ``:asc`` or ``:desc`` to
    choose the direction. ``columns`` are those of ``table``, else of the calls, or of the
    parameters if no call has such a column; names with a leading ``+`` come on top of the usual
    ones. ``table`` is one table, or several with commas;
    None shows every table, except in csv, which holds one: the calls. ``fold`` shows blocks that
    look the same once, in the tables for people. ``depth`` leaves out modules deeper than that: 0
    is the model alone, 1 its direct parts too. ``bar`` is a column that gets bars beside it.
    ``rules`` are for formats that carry the rule book along;
    ``root`` is what their paths are relative to, None: as the record has them. ``command`` is the
    the command whose options a remark names, if it is not the command that was called.
    """

    width: int | None = None
    color: bool = False
    sort: str | None = None
    top: int | None = None
    columns: tuple[str, ...] | None = None
    table: str | None = None
    fold: bool = False
    depth: int | None = None
    bar: str | None = None
    rules: tuple[RuleText, ...] = ()
    root: Path | None = None
    command: str | None = None

    @property
    def tables(self) -> tuple[str, ...]:
        """The names in ``table``, which commas separate; none for every table."""
        return () if self.table is None else tuple(self.table.split(","))

    def holds(self, module: str) -> bool:
        """Return True if a module's name has at most as many parts as the view's depth."""
        return self.depth is None or (module.count(".") + 1 if module else 0) <= self.depth

    def option(self, words: str) -> str:
        """Return an option for a remark: with its command, if another command was called."""
        return f"{self.command} {words}" if self.command else words


@dataclass(frozen=True, slots=True)
class DiffView:
    """``width`` None is unlimited, as in a pipe.

    ``top`` shows as many rows of each table, those that are farthest off; ``table`` one of "calls",
    "parameters" and "findings" alone. ``root`` is the base of paths in annotations.
    ``panels`` and ``maps`` are charts for a page, of what both have over their steps; ``rules`` are
    what SARIF tells of each rule.
    """

    width: int | None = None
    color: bool = False
    top: int | None = None
    table: str | None = None
    root: Path | None = None
    panels: tuple[Panel, ...] = ()
    maps: tuple[Map, ...] = ()
    rules: tuple[RuleText, ...] = ()
