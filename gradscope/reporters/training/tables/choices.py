"""The tables and columns that a view of a run may select."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from gradscope.reporters.report import View
from gradscope.reporters.report.tables.view_checks import check_choices
from gradscope.reporters.training.tables import series_columns, steps

_COLUMNS: Mapping[str, Collection[str] | None] = {
    "steps": steps.COLUMNS,
    **series_columns.COLUMNS,
    "findings": None,
    "events": None,
}


def check(view: View) -> None:
    """Refuse a view that names what no table has, before the run is read.

    Raises:
        OptionError: an unknown table, column or direction, or a ``top`` below 1.
    """
    check_choices(view, _COLUMNS, "parameters", series_columns.COLUMNS["parameters"])
