"""Makes the tables of a report; terminal, Markdown and CSV all render these."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gradscope.errors import OptionError, refuse_unknown
from gradscope.records.report import Report
from gradscope.records.run import StepRecord
from gradscope.records.transformer import PROBES
from gradscope.reporters.tables import call_columns, parameter_columns, transformer
from gradscope.reporters.tables.columns import (
    Column,
    Entry,
    Row,
    Scalar,
    bars_legend,
    cells,
    chosen_columns,
    folds,
    known,
    parse_sort,
    pick,
    select,
    single,
    sort_column,
    with_bars,
)
from gradscope.reporters.tables.experiments import (
    accumulation,
    gradient_checks,
    interventions,
    per_sample,
    tasks,
)
from gradscope.reporters.tables.folding import fold_calls, fold_parameters
from gradscope.reporters.views import View
from gradscope.typeset.numbers import NOT_THERE, count, number
from gradscope.typeset.tables import Cell, Heading, Table, plan
from gradscope.typeset.text import plain


def calls(report: Report, view: View) -> Table:
    """Return the table of calls: a row for each output, and for each of several inputs that require
    a gradient."""
    groups = [call_columns.folded(call) for call in report.calls if view.holds(call.name)]
    return _table(
        *("calls", report, view),
        fold_calls(groups) if view.fold else list(map(single, groups)),
        call_columns.COLUMNS,
        call_columns.USUAL,
        call_columns.with_marks,
        unneeded=call_columns.NOT_NEEDED,
        about=lambda row: row.about,
        hidden=call_columns.DOUBLES,
    )


def parameters(report: Report, view: View) -> Table:
    """Return the table of parameters: value, gradient, and the optimizer's update."""
    groups = [(stats,) for stats in _parameters(report, view)]
    return _table(
        *("parameters", report, view),
        fold_parameters(groups) if view.fold else list(map(single, groups)),
        parameter_columns.COLUMNS,
        parameter_columns.USUAL,
        parameter_columns.with_marks,
        unneeded=parameter_columns.FROZEN,
        about=lambda row: row.about,
    )


def records(report: Report, view: View) -> tuple[list[str], list[list[Scalar]]]:
    """Return header and exact values of one table, a row for each tensor: the content of csv."""
    if view.table in PROBES:
        return transformer.records(report, view.table, view)
    of_parameters = view.table is None and _asked(view, "parameters") and not _asked(view, "calls")
    if view.table == "parameters" or of_parameters:
        owned = [(stats,) for stats in _parameters(report, view)]
        return _exact(
            owned, parameter_columns.COLUMNS, parameter_columns.EXACT, view, ["name"], "parameter"
        )
    groups = [call_columns.expanded(call) for call in report.calls if view.holds(call.name)]
    # Without these, the rows of one call could not be distinguished.
    first = ["name", "call", "direction", "path"]
    return _exact(groups, call_columns.COLUMNS, call_columns.EXACT, view, first, "call")


def _exact(
    groups: Sequence[tuple[Row, ...]],
    registry: Mapping[str, Column[Row]],
    usual: Sequence[str],
    view: View,
    first: Sequence[str],
    noun: str,
) -> tuple[list[str], list[list[Scalar]]]:
    chosen, _ = select(list(map(single, groups)), registry, view, noun)
    columns = pick(registry, view.columns, usual, first)
    rows = [[column.value(row) for column in columns] for entry in chosen for row in entry.rows]
    return [column.key for column in columns], rows


def _parameters(report: Report, view: View) -> list[parameter_columns.ParameterRow]:
    """Return the parameters whose module the view shows."""
    return [
        parameter_columns.ParameterRow(stats)
        for stats in report.parameters
        if view.holds(stats.name.rpartition(".")[0])
    ]


def history(report: Report) -> Table | None:
    """Return a row for each backward, if there were several."""
    if len(report.history) < 2:
        return None
    repeats = any(step.backward for step in report.history)
    moved = any(p.update_ratio is not None for s in report.history for p in s.parameters)
    keys = ["step"] + ["backward"] * repeats + ["loss", "gradient_norm"]
    keys += ["largest_update", "parameter"] * moved
    rows = [tuple(_step(step)[key] for key in keys) for step in report.history]
    columns = tuple(Heading(key, key != "parameter", wraps=key == "parameter") for key in keys)
    return Table("history", columns, tuple(rows))


def _step(step: StepRecord) -> dict[str, Cell]:
    updates = [(p.update_ratio, p.name) for p in step.parameters if p.update_ratio is not None]
    largest, name = max(updates, default=(None, ""))
    loss = step.loss_nonfinite or number(step.loss)
    return {
        "step": Cell(count(step.step)),
        "backward": Cell(count(step.backward)),
        "loss": Cell(plain(loss), "bad" if step.loss_nonfinite else ""),
        "gradient_norm": Cell(number(step.gradient_norm)),
        "largest_update": Cell(number(largest)),
        "parameter": Cell(plain(name) or NOT_THERE),
    }


def _unmeasured(registry: Mapping[str, Column[Row]], rows: Sequence[Row]) -> list[str]:
    """Return the empty columns, which `all` leaves out."""
    keys = [key for key in call_columns.MEASURED if key in registry]
    return [k for k in keys if all(registry[k].value(row) is None for row in rows)]


def _table(
    title: str,
    report: Report,
    view: View,
    entries: Sequence[Entry[Row]],
    registry: Mapping[str, Column[Row]],
    usual: Sequence[str],
    with_marks: Callable[[Sequence[tuple[Row, ...]]], tuple[Sequence[tuple[Row, ...]], list[str]]],
    *,
    unneeded: str,
    about: Callable[[Row], str],
    hidden: Sequence[str] = (),
) -> Table:
    """Return the table with the requested entries and columns; the first usual column comes
    first."""
    asked = _asked(view, title)
    chosen, caption = select(entries, registry, view, title.removesuffix("s"))
    marked, notes = with_marks([entry.shown for entry in chosen])
    rows = [row for entry in chosen for row in entry.rows]
    barred = registry.get(view.bar or "")
    if asked and barred is not None:
        asked = (*asked, barred.key)
    columns, headings = chosen_columns(
        *(registry, usual, rows, asked, (sort_column(view), view.bar)),
        [*hidden, *_unmeasured(registry, rows)],
    )
    lines = cells(columns, marked, chosen)
    drawn = []
    if barred is not None:
        members = [stood_for for entry in chosen for stood_for in entry.members]
        headings, lines = with_bars(barred, columns, headings, lines, members)
        drawn = [bars_legend(barred.key)]
    option = "--table parameters --columns" if title == "parameters" else "--columns"
    made = Table(
        title,
        headings,
        lines,
        ", ".join(
            filter(None, [caption, "" if view.depth is None else f"down to depth {view.depth}"])
        ),
        fixed=bool(asked),
        remedy=f"use {option} or a wider terminal",
        names=tuple(about(row) for shown in marked for row in shown),
    )
    gone = plan(made, view.width).hidden
    signs = call_columns.signs(report, [c for c in columns if c.key not in gone], rows, unneeded)
    return replace(made, legend=(*folds(chosen), *notes, *signs, *drawn))


NO_CALLS = "no calls were recorded"


def tables(report: Report, view: View) -> Iterator[Table]:
    """Yield the tables with rows."""
    if len(view.tables) > 1:
        for name in view.tables:
            yield from tables(report, replace(view, table=name))
        return
    if view.table in PROBES:
        made = transformer.table(report, view.table, view)
        if made is not None:
            yield made
        return
    if view.table in (None, "calls") and report.calls:
        yield calls(report, view)
    if view.table in (None, "parameters"):
        owned = parameters(report, view)
        if owned.rows:
            yield owned
    if view.table is not None:
        return
    steps = history(report)
    if steps:
        yield steps
    for make in (interventions, accumulation, tasks, per_sample, gradient_checks):
        table = make(report, view)
        if table is not None:
            yield table


def transformer_tables(report: Report, view: View) -> Iterator[Table]:
    """Yield the tables of attention, experts and residual stream that have rows."""
    found = (transformer.table(report, kind, view) for kind in PROBES)
    yield from (table for table in found if table is not None)


def lacking(report: Report, view: View) -> Iterator[tuple[str, str]]:
    """Yield the requested tables without rows, with the reason."""
    wanted = view.tables or ("calls",)
    if "calls" in wanted and not report.calls:
        yield "calls", NO_CALLS
    for kind in PROBES:
        if kind in wanted and not getattr(report, kind):
            yield kind, transformer.NOTHING[kind]


def _asked(view: View, title: str) -> Sequence[str] | None:
    """Return the columns requested for a table; without ``view.table``, each goes to the table that
    has it."""
    words = view.columns
    if view.table is not None or words is None:
        return words if (view.table == "parameters") == (title == "parameters") else None
    of_calls = [w for w in words if w.removeprefix("+") in {"all", *call_columns.COLUMNS}]
    if title == "parameters":
        return [word for word in words if word not in of_calls] or None
    return of_calls or None


_BARS = "a bar needs numbers, as in `--bar grad_out`"
_BOTH: Mapping[str, Any] = {**call_columns.COLUMNS, **parameter_columns.COLUMNS}
#: The columns of each table; None: there are none to choose.
_OF_TABLE: Mapping[str, Collection[str] | None] = {
    "calls": call_columns.COLUMNS,
    "parameters": parameter_columns.COLUMNS,
    **transformer.COLUMNS,
    "findings": None,
}
TABLES = tuple(_OF_TABLE)


def check_choices(
    view: View, tables: Mapping[str, Collection[str] | None], usual: Collection[str]
) -> None:
    """Refuse a view of tables that names an unknown table or column.

    Args:
        tables: the columns of each table; None for a table with fixed columns.
        usual: the columns that may be named if the view names no table.

    Raises:
        OptionError: an unknown table, column or direction, or a ``top`` below 1.
    """
    for table in view.tables:
        refuse_unknown("table", table, tables)
    if len(view.tables) > 1 and (view.columns or view.sort):
        raise OptionError("`--columns` and `--sort` need one table", help="give `--table` one name")
    if view.top is not None and view.top < 1:
        raise OptionError(f"`--top {view.top}` would show nothing", help="give 1 or more")
    name = view.tables[0] if len(view.tables) == 1 else None
    columns = tables[name] if name else usual
    if columns is None:
        if view.columns or view.sort:
            raise OptionError(
                f"the {name} have fixed columns and a fixed order",
                help="leave out `--columns` and `--sort`; `-f csv` has every field",
            )
        return
    for word in view.columns or ():
        key = word.removeprefix("+")
        if key != "all":
            known(key, columns)
    if view.sort is not None:
        known(parse_sort(view.sort)[0], columns)


def check(view: View) -> None:
    """Refuse a view that names an unknown table or column, before anything expensive runs.

    Raises:
        OptionError: an unknown table, column or direction, a ``top`` below 1, a ``depth`` below 0.
    """
    check_choices(view, _OF_TABLE, _BOTH)
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
    """Return True if the view needs measurements in a separate run."""
    words = {word.removeprefix("+") for word in view.columns or ()}
    words |= {view.bar or "", parse_sort(view.sort or "")[0]}
    return bool(words & set(call_columns.MEASURED))
