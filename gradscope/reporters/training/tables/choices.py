"""What a view of a run may ask for: its tables, their columns."""

from __future__ import annotations

from collections.abc import Collection

from gradscope.errors import OptionError, did_you_mean
from gradscope.reporters.report import View
from gradscope.reporters.report.tables.columns import known, parse_sort
from gradscope.reporters.training.tables import series_columns, steps

TABLES = ("steps", "parameters", "calls", "findings", "events")
_COLUMNS: dict[str, Collection[str]] = {"steps": steps.COLUMNS, **series_columns.COLUMNS}


def check(view: View) -> None:
    """Refuse a view that names what no table has, before the run is read.

    Raises:
        OptionError: an unknown table, column or direction, or a ``top`` below 1.
    """
    if view.table is not None and view.table not in TABLES:
        raise OptionError(
            f"a run has no table `{view.table}`",
            help=did_you_mean(view.table, TABLES) or f"one of {', '.join(TABLES)}",
        )
    if view.top is not None and view.top < 1:
        raise OptionError(f"`--top {view.top}` would show nothing", help="give 1 or more")
    if view.table in ("findings", "events") and (view.columns or view.sort):
        raise OptionError(
            f"the {view.table} have neither columns to choose nor an order but their own",
            help="leave `--columns` and `--sort` away; `-f csv` has every field",
        )
    columns = _COLUMNS.get(view.table or "parameters", ())
    for word in view.columns or ():
        key = word.removeprefix("+")
        if key != "all":
            known(key, columns)
    if view.sort is not None:
        known(parse_sort(view.sort)[0], columns)
