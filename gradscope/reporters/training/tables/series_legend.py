"""The legend of a table of layers over steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gradscope.records.history import RunHistory
from gradscope.reporters.report import View
from gradscope.reporters.report.tables.call_columns import MISSING
from gradscope.reporters.report.tables.columns import Column
from gradscope.reporters.training.tables.legend import curve_legend
from gradscope.reporters.training.tables.series_columns import PARAMETERS, TO, SeriesRow
from gradscope.typeset.numbers import NOT_THERE, count, plural
from gradscope.typeset.tables import Cell


def series_legend(
    history: RunHistory,
    view: View,
    columns: Sequence[Column[SeriesRow]],
    texts: Sequence[Sequence[Cell]],
    shown: Sequence[SeriesRow],
) -> list[str]:
    """The steps of the columns, what a row stands for, and the symbols that occur."""
    lines = []
    sampled = sorted(shown[0].places("")) if shown else []
    steps = list(_steps(columns, shown))
    if len(steps) > 1:
        lines.append(f"steps: {', '.join(steps)}")
    if any(row.times > 1 for row in shown):
        lines.append("×n: n blocks that look the same, one after the other; figures are medians")
    words = {word for row in texts for cell in row for word in cell.text.split()}
    if TO.strip() in words:
        first, last = count(sampled[0]), count(sampled[-1])
        which = f"sampled step and at the last, {first} and {last}"
        lines.append(f"a{TO}b: at the first {'of these and at the last' if steps[1:] else which}")
    if MISSING in words:
        lines.append(f"{MISSING}: no gradient arrived")
    if NOT_THERE in words:
        lines.append(f"{NOT_THERE}: nothing to measure")
    if any(column.key.endswith("_ranks") for column in columns):
        lines.append("ranks: the smallest and the largest over ranks at the last sampled step")
    drawn = [i for i, column in enumerate(columns) if column.key.endswith("_curve")]
    curves = [row[i].text for row in texts for i in drawn]
    over = f"over {plural(len(sampled), 'sampled step')}" if len(sampled) > 1 else ""
    over = "over these steps" if steps[1:] else over
    explained = view.table is None and bool(history.steps)  # under the step metrics
    return [*lines, *curve_legend(curves, over, explained=explained)]


def _steps(columns: Sequence[Column[SeriesRow]], shown: Sequence[SeriesRow]) -> Iterator[str]:
    """How many steps the figures of each column are of, where that is not the same of all."""
    alike: dict[tuple[int, ...], list[str]] = {}
    for column in columns:
        measure = PARAMETERS.get(column.key)
        if measure is not None and shown:
            alike.setdefault(tuple(shown[0].places(measure)), []).append(column.key)
    for steps, keys in alike.items():
        if steps:
            ends = " to ".join(dict.fromkeys(map(count, (steps[0], steps[-1]))))
            yield f"{' and '.join(keys)} {count(len(steps))} ({ends})"
