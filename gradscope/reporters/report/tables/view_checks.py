"""Checks the options of a view before anything expensive runs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from gradscope.errors import OptionError, refuse_unknown
from gradscope.reporters.report._view import View
from gradscope.reporters.report.tables import call_columns, parameter_columns
from gradscope.reporters.report.tables.columns import known, parse_sort

_BARS = "a bar needs numbers, as in `--bar grad_out`"
_BOTH: Mapping[str, Any] = {**call_columns.COLUMNS, **parameter_columns.COLUMNS}
#: The columns of each table; None: there are none to choose.
_COLUMNS: Mapping[str, Collection[str] | None] = {
    "calls": call_columns.COLUMNS,
    "parameters": parameter_columns.COLUMNS,
    "findings": None,
}
TABLES = tuple(_COLUMNS)


def check_choices(
    view: View, tables: Mapping[str, Collection[str] | None], usual: str, sortable: Collection[str]
) -> None:
    """Refuse a view of tables that names what none of them has.

    Args:
        tables: the columns of each; None of one that has none to choose.
        usual: the one that is meant where the view names none.
        sortable: what may then be sorted by.

    Raises:
        OptionError: an unknown table, column or direction, or a ``top`` below 1.
    """
    name = view.table
    if name is not None:
        refuse_unknown("table", name, tables)
    if view.top is not None and view.top < 1:
        raise OptionError(f"`--top {view.top}` would show nothing", help="give 1 or more")
    columns = tables[name or usual]
    if columns is None:
        if view.columns or view.sort:
            raise OptionError(
                f"the {name} have neither columns to choose nor an order but their own",
                help="leave `--columns` and `--sort` away; `-f csv` has every field",
            )
        return
    for word in view.columns or ():
        key = word.removeprefix("+")
        if key != "all":
            known(key, columns)
    if view.sort is not None:
        known(parse_sort(view.sort)[0], columns if name else sortable)


def check(view: View) -> None:
    """Refuse a view that names what no table has, before anything expensive runs.

    Raises:
        OptionError: an unknown table, column or direction, a ``top`` below 1, a ``depth`` below 0.
    """
    check_choices(view, _COLUMNS, "calls", _BOTH)
    if view.depth is not None and view.depth < 0:
        raise OptionError(f"`--depth {view.depth}` is not a depth", help="give 0 or more")
    if view.bar is not None:
        found = [
            r[view.bar] for r in (call_columns.COLUMNS, parameter_columns.COLUMNS) if view.bar in r
        ]
        known(view.bar, _BOTH)
        if not any(column.right for column in found):
            raise OptionError(f"`--bar {view.bar}`: the column holds no numbers", help=_BARS)


def measured(view: View) -> bool:
    """Whether the view asks for what only its own run can tell."""
    words = {word.removeprefix("+") for word in view.columns or ()}
    words |= {view.bar or "", parse_sort(view.sort or "")[0]}
    return bool(words & set(call_columns.MEASURED))
