"""A run's layers as a table: parameters, or calls, each over the sampled steps."""

from __future__ import annotations

import functools
import math
from array import array
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace

from rich.cells import cell_len

from gradscope.records.tensors import MEASURES, NONE, NormSeries, number_or_none
from gradscope.records.training import LayerSeries, RunHistory, steps_with
from gradscope.records.transformer import PROBES, TransformerSeries
from gradscope.reporters.run.series_columns import (
    COLUMNS,
    PARAMETERS,
    TO,
    USUAL,
    SeriesRow,
)
from gradscope.reporters.run.step_metrics import curve_legend
from gradscope.reporters.tables.call_columns import MISSING
from gradscope.reporters.tables.columns import (
    Column,
    Entry,
    cells,
    parse_sort,
    pick,
    select,
    single,
)
from gradscope.reporters.tables.folding import fold_named
from gradscope.reporters.tables.transformer import NOUNS, REDUCED, reduced
from gradscope.reporters.views import View
from gradscope.rules import SEVERITIES
from gradscope.typeset.numbers import NOT_THERE, count, plural
from gradscope.typeset.tables import KEEP, Cell, Heading, Table

#: From more rows than can be read a terminal gets so many, unless it asks for others; a pipe all.
MANY, FEW = 40, 24


def table(history: RunHistory, title: str, view: View) -> Table | None:
    """Return the table named by ``title``: parameters, calls or others; None if nothing was
    recorded."""
    series = _series(history, title)
    if not series:
        return None
    registry = COLUMNS[title]
    room = _room(view.width)
    places = _places(series)
    rows = [SeriesRow(one, places, room) for one in series]
    entries = _folded(rows) if view.fold else [single((row,)) for row in rows]
    chosen, caption, remark = _chosen(entries, history, title, view)
    shown = [entry.shown for entry in chosen]
    everything = [row for entry in chosen for row in entry.rows]
    asked = view.columns if title == (view.table or "parameters") else None
    needed = [registry[key] for key in USUAL[title]]
    usual = [c.key for c in needed if c.needed is not None and c.needed(everything)]
    by = parse_sort(view.sort)[0] if view.sort else None
    if by in registry and by not in usual:
        usual.append(by)
    columns = pick(registry, asked, usual, ["name"])
    texts = _aligned(cells(columns, shown, list(map(single, shown))))
    option = view.option(f"--table {title} --columns")
    return Table(
        title,
        tuple(
            Heading(
                *(c.key, c.right, KEEP if c.key == by else c.keep, c.wraps),
                beside=c.key.removesuffix("_curve") if c.key.endswith("_curve") else "",
            )
            for c in columns
        ),
        texts,
        caption,
        (*remark, *series_legend(history, title, view, columns, texts, [row for (row,) in shown])),
        fixed=bool(asked),
        remedy=f"use {option} or a wider terminal",
        names=tuple(row.about for (row,) in shown),
    )


def _series(history: RunHistory, title: str) -> Sequence[LayerSeries]:
    """Return the series of a table; heads and experts are reduced to one figure."""
    if title not in PROBES:
        return history.calls if title == "calls" else history.parameters
    parts: Sequence[TransformerSeries] = getattr(history, title)
    return [
        LayerSeries(
            f"{one.name} part {one.part}" if one.part else one.name,
            one.steps,
            {
                key: tuple(reduced(figures, reduce) for figures in one.values[measure])
                for key, (measure, reduce, _) in REDUCED[title].items()
            },
            one.model,
            one.call,
        )
        for one in parts
    ]


def _places(series: Sequence[LayerSeries]) -> Callable[[str], dict[int, int]]:
    """Return the steps that have a measure, numbered; for most measures, these are the sampled
    steps."""

    @functools.cache
    def of(measure: str) -> dict[int, int]:
        return {step: i for i, step in enumerate(steps_with(measure, series))}

    sampled = of("")
    read = any(one.norms is not None for one in series)
    return lambda measure: of(measure) if read and measure in MEASURES else sampled


def _room(width: int | None) -> int:
    return 24 if width is None or width >= 160 else 16 if width >= 120 else 12 if width >= 80 else 8


def _folded(rows: Sequence[SeriesRow]) -> list[Entry[SeriesRow]]:
    def signature(row: SeriesRow) -> Hashable:
        series = row.series
        measured = tuple((key, bool(row.known(key))) for key in series.values)
        norms = series.norms
        read = () if norms is None else (tuple(norms.steps), tuple(norms.value_steps))
        return series.model, series.call, series.shape, series.types, series.steps, measured, read

    return fold_named(rows, lambda row: row.series.name, signature, _together)


def _together(name: str, rows: Sequence[SeriesRow]) -> SeriesRow:
    """Merge rows into one, whose curves are the medians."""
    first = rows[0].series
    values = {
        key: tuple(map(_most if key.endswith("nonfinite") else _middle, zip(*columns, strict=True)))
        for key in first.values
        for columns in [[row.series.values[key] for row in rows]]
    }
    norms = [row.series.norms for row in rows]
    together = replace(first, name=name, values=values, norms=_middles(norms))
    return SeriesRow(together, rows[0].places, rows[0].room, len(rows))


def _middles(norms: Sequence[NormSeries | None]) -> NormSeries | None:
    """Return the medians of norms at each step; a NaN or Inf in any of them is kept."""
    known = [one for one in norms if one is not None]
    if not known:
        return None

    def middles(columns: Sequence[Sequence[float]]) -> array[float]:
        return array("d", map(_middle_norm, zip(*columns, strict=True)))

    return replace(
        known[0],
        gradient=middles([one.gradient for one in known]),
        clipped=middles([one.clipped for one in known]),
        value=middles([one.value for one in known]),
    )


def _middle_norm(norms: Sequence[float]) -> float:
    if not all(map(math.isfinite, norms)):
        return math.nan
    middle = _middle([number_or_none(norm) for norm in norms])
    return NONE if middle is None else middle


def _most(values: Sequence[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _middle(values: Sequence[float | None]) -> float | None:
    known = sorted(value for value in values if value is not None)
    return known[(len(known) - 1) // 2] if known else None


def _chosen(
    entries: list[Entry[SeriesRow]], history: RunHistory, title: str, view: View
) -> tuple[list[Entry[SeriesRow]], str, list[str]]:
    """Return the entries to show, the caption, and the way to see the rest.

    If there are too many, entries in findings come first, then those that changed most.
    """
    noun = NOUNS.get(title, "call" if title == "calls" else "parameter")
    top = view.top or (None if view.width is None or len(entries) <= MANY else FEW)
    cut = top is not None and top < len(entries)
    steps_read = _steps_read(
        history, [row.series for entry in entries for row in entry.rows], title
    )
    if not cut or view.sort:
        chosen, by = select(entries, COLUMNS[title], replace(view, top=top), noun)
        caption, remark = by or steps_read, []
    else:
        chosen = sorted(entries, key=_telling(history))[:top]
        caption = f"{count(len(chosen))} of {plural(len(entries), noun)} shown"
        remark = ["layers with findings come first, then those with the largest change of gradient"]
    more = len(entries) - len(chosen)
    if more and not view.top:
        fold = "" if view.fold else ", `--fold` merges equal blocks"
        pattern = view.option("-l PATTERN")
        ways = f"`{pattern}` selects some, `--top {len(entries)}` shows all{fold}"
        remark.append(f"{count(more)} more: {ways}")
    return chosen, caption, remark


def _steps_read(history: RunHistory, series: Sequence[LayerSeries], title: str) -> str:
    """Return the steps that were read, in words: ``at 150 steps, 9 of them sampled``."""
    read = len(steps_with("grad_norm", series)) if title == "parameters" else 0
    if read > len(history.sampled):
        return f"at {plural(read, 'step')}, {count(len(history.sampled))} of them sampled"
    return f"at {plural(len(history.sampled), 'sampled step')}"


def _telling(history: RunHistory) -> Callable[[Entry[SeriesRow]], tuple[bool, int, float]]:
    """Return the sort key by importance: not finite, named by a finding, changed most."""
    named: dict[str, int] = {}
    for found in history.findings:
        finding = found.finding
        level = finding.severity
        rank = SEVERITIES.index(level) if level in SEVERITIES else len(SEVERITIES)
        named[finding.name] = min(rank, named.get(finding.name, rank))

    def weight(series: LayerSeries) -> int:
        own = [named.get(series.name), named.get(series.name.rpartition(".")[0] or series.name)]
        return min((x for x in own if x is not None), default=len(SEVERITIES) + 1)

    def key(entry: Entry[SeriesRow]) -> tuple[bool, int, float]:
        rows = entry.rows
        return (
            not any(row.lost for row in rows),
            min(weight(row.series) for row in rows),
            -max(row.change for row in rows),
        )

    return key


def _aligned(rows: tuple[tuple[Cell, ...], ...]) -> tuple[tuple[Cell, ...], ...]:
    """Align the cells, so that their arrows are below each other."""
    widest: dict[int, int] = {}
    for row in rows:
        for i, cell in enumerate(row):
            _, arrow, last = cell.text.rpartition(TO)
            if arrow:
                widest[i] = max(widest.get(i, 0), cell_len(last))

    def padded(cell: Cell, width: int) -> Cell:
        first, arrow, last = cell.text.rpartition(TO)
        text = first + TO + " " * (width - cell_len(last)) + last if arrow else cell.text
        return replace(cell, text=text)

    return tuple(
        tuple(padded(cell, widest[i]) if i in widest else cell for i, cell in enumerate(row))
        for row in rows
    )


def series_legend(
    history: RunHistory,
    title: str,
    view: View,
    columns: Sequence[Column[SeriesRow]],
    texts: Sequence[Sequence[Cell]],
    shown: Sequence[SeriesRow],
) -> list[str]:
    """Return the legend: the steps of the columns, the meaning of a row, and the symbols that
    occur.
    """
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
    known = {column.key for column in columns}
    for key, (_, _, meaning) in REDUCED.get(title, {}).items():
        if key in known:
            lines.append(f"{key}: {meaning}")
    if any(column.key.endswith("_ranks") for column in columns):
        lines.append("ranks: the smallest and the largest over ranks at the last sampled step")
    drawn = [i for i, column in enumerate(columns) if column.key.endswith("_curve")]
    curves = [row[i].text for row in texts for i in drawn]
    over = f"over {plural(len(sampled), 'sampled step')}" if len(sampled) > 1 else ""
    over = "over these steps" if steps[1:] else over
    explained = view.table is None and bool(history.steps)  # under the step metrics
    return [*lines, *curve_legend(curves, over, explained=explained)]


def _steps(columns: Sequence[Column[SeriesRow]], shown: Sequence[SeriesRow]) -> Iterator[str]:
    """Yield the number of steps that each column's figures cover, if columns differ."""
    alike: dict[tuple[int, ...], list[str]] = {}
    for column in columns:
        measure = PARAMETERS.get(column.key)
        if measure is not None and shown:
            alike.setdefault(tuple(shown[0].places(measure)), []).append(column.key)
    for steps, keys in alike.items():
        if steps:
            ends = " to ".join(dict.fromkeys(map(count, (steps[0], steps[-1]))))
            yield f"{' and '.join(keys)} {count(len(steps))} ({ends})"
