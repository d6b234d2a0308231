"""What a view asks of the tables, checked before anything expensive runs."""

from __future__ import annotations

from gradscope.errors import OptionError, did_you_mean
from gradscope.reporters.report._view import View
from gradscope.reporters.report.tables import call_columns, parameter_columns
from gradscope.reporters.report.tables.columns import known, parse_sort

_BARS = "a bar needs numbers, as in `--bar grad_out`"
TABLES = ("calls", "parameters", "findings")


def check(view: View) -> None:
    """Refuse a view that names what no table has, before anything expensive runs.

    Raises:
        OptionError: an unknown table, column or direction, or a ``top`` below 1.
    """
    if view.table is not None and view.table not in TABLES:
        raise OptionError(
            f"unknown table `{view.table}`",
            help=did_you_mean(view.table, TABLES) or f"one of {', '.join(TABLES)}",
        )
    if view.depth is not None and view.depth < 0:
        raise OptionError(f"`--depth {view.depth}` is no depth", help="give 0 or more")
    if view.top is not None and view.top < 1:
        raise OptionError(f"`--top {view.top}` would show nothing", help="give 1 or more")
    if view.table == "findings" and (view.columns or view.sort):
        raise OptionError(
            "the findings have neither columns to choose nor an order but their own",
            help="leave `--columns` and `--sort` away; `-f csv` has every field",
        )
    registry = parameter_columns.COLUMNS if view.table == "parameters" else call_columns.COLUMNS
    for word in view.columns or ():
        key = word.removeprefix("+")
        if key != "all":
            known(key, registry)
    if view.sort is not None:
        key, _ = parse_sort(view.sort)
        sortable = registry if view.table else {**call_columns.COLUMNS, **parameter_columns.COLUMNS}
        known(key, sortable)
    if view.bar is not None:
        found = [
            r[view.bar] for r in (call_columns.COLUMNS, parameter_columns.COLUMNS) if view.bar in r
        ]
        known(view.bar, {**call_columns.COLUMNS, **parameter_columns.COLUMNS})
        if not any(column.right for column in found):
            raise OptionError(f"`--bar {view.bar}`: the column holds no numbers", help=_BARS)


def measured(view: View) -> bool:
    """Whether the view asks for what only a run of its own can tell."""
    words = {word.removeprefix("+") for word in view.columns or ()}
    words |= {view.bar or "", parse_sort(view.sort or "")[0]}
    return bool(words & set(call_columns.MEASURED))
