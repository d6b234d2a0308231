"""Options of a text: how wide, which tables, which rows and columns."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gradscope.charts.maps import Map
from gradscope.charts.panels import Panel
from gradscope.records.report import RuleText


@dataclass(frozen=True, slots=True)
class TextView:
    """The settings of a text. A ``width`` of None is unlimited, as in a pipe."""

    width: int | None = None
    color: bool = False


@dataclass(frozen=True, slots=True)
class View:
    """Holds the display options of a report: columns, rows, width.

    Attributes:
        width: the width in characters; None: unlimited, as in a pipe.
        color: use colour.
        sort: a column, with ``:asc`` or ``:desc`` to choose the direction.
        top: the largest number of rows.
        columns: columns of ``table``, else of the calls, or of the parameters if no call has such
            a column; names with a leading ``+`` are added to the usual columns.
        table: one table, or several with commas. None: all tables; in csv, the calls.
        fold: show equal blocks once, in tables for people.
        depth: the largest depth of modules: 0 is the model alone, 1 adds its direct parts.
        bar: a column that gets bars beside it.
        rules: the rule book, for formats that include it.
        root: the folder to which paths are relative; None: as in the record.
        command: the command whose options remarks name, if it is not the command that was called.
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
    """Holds the display options of a comparison.

    Attributes:
        width: the width in characters; None: unlimited, as in a pipe.
        color: use colour.
        top: the number of rows of each table: those with the largest errors.
        table: "calls", "parameters" or "findings"; None: all.
        root: the folder to which paths in annotations are relative.
        panels, maps: charts of both runs over their steps, for a page.
        rules: the rule book, for SARIF.
    """

    width: int | None = None
    color: bool = False
    top: int | None = None
    table: str | None = None
    root: Path | None = None
    panels: tuple[Panel, ...] = ()
    maps: tuple[Map, ...] = ()
    rules: tuple[RuleText, ...] = ()
