"""Tables of a run's layers over its steps: what each shows, and every column that they can show."""

from __future__ import annotations

import functools
import math
from array import array
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from rich.cells import cell_len

from gradscope.records.tensors import MEASURES, NONE, NormSeries, number_or_none, steps_lost
from gradscope.records.tensors import MEASURES as NORMS
from gradscope.records.training import Course, LayerSeries, RunHistory, steps_with
from gradscope.records.transformer import PROBES, TransformerSeries
from gradscope.reporters.header import label
from gradscope.reporters.run.step_metrics import curve_legend, losses
from gradscope.reporters.tables.call_columns import MISSING
from gradscope.reporters.tables.columns import (
    Column,
    Entry,
    cells,
    chosen_columns,
    figure,
    over_ranks,
    select,
    single,
    sort_column,
    words,
)
from gradscope.reporters.tables.folding import fold_named
from gradscope.reporters.tables.transformer import NOUNS, REDUCED, SHARES, reduced
from gradscope.reporters.views import View
from gradscope.rules import SEVERITIES
from gradscope.typeset.numbers import NOT_THERE, count, number, plural, shape, share
from gradscope.typeset.sparklines import NOT_FINITE, curve
from gradscope.typeset.tables import KEEP, Cell, Table
from gradscope.typeset.text import plain

Figure = Callable[[float], str]
#: Separates the first value from the last.
TO = " → "
#: A table's measures, in the order of its columns: the name of the column, and of the series.
PARAMETERS = {
    "grad": "grad_norm",
    "update": "update_ratio",
    "norm": "value_norm",
    "clipped": "clipped_norm",
    "zeros": "zeros",
    "update_rms": "update_rms",
    "effective_lr": "effective_lr",
    "cosine": "cosine",
    "decay": "decay_share",
    "momentum": "m_norm",
    "v_norm": "v_norm",
    "v_spread": "v_spread",
    "spectral_norm": "spectral_norm",
    "stable_rank": "stable_rank",
}
CALLS = {
    "norm": "out_norm",
    "grad_out": "grad_out_norm",
    "grad_in": "grad_in_norm",
    "mean": "out_mean",
    "std": "out_std",
    "min": "out_min",
    "max": "out_max",
    "zeros": "out_zeros",
}
#: Of attention, experts and residual stream, reduced over heads and experts.
TRANSFORMER = {kind: {key: key for key in columns} for kind, columns in REDUCED.items()}
_KEEP = {
    **{"name": KEEP, "grad": KEEP, "grad_out": KEEP, "nonfinite": KEEP},
    **{"grad_curve": 90, "grad_out_curve": 90, "update": 80, "norm": 70},
    **{"update_curve": 60, "norm_curve": 50, "norm_ranks": 65, "grad_out_ranks": 75},
    **{"logit_max": KEEP, "logit_max_curve": 90, "evenness": 85, "evenness_curve": 80},
    **{"most": KEEP, "effective": 85, "effective_curve": 80, "unused": 75, "sink": 70},
    **{"rms": KEEP, "rms_curve": 80, "added": 85, "max_to_median": 75, "nan_rows": KEEP},
    **{"update_rms": KEEP, "update_rms_curve": 85, "cosine": 78, "decay": 76, "momentum": 72},
    **{"v_norm": 68, "v_spread": 58, "effective_lr": 74, "spectral_norm": 66, "stable_rank": 64},
}
USUAL = {
    "parameters": (
        *("name", "grad", "grad_curve", "update", "update_curve", "norm", "norm_curve"),
        "nonfinite",
    ),
    "updates": (
        *("name", "update_rms", "update_rms_curve", "effective_lr", "cosine", "decay"),
        *("momentum", "v_norm", "v_spread", "spectral_norm", "stable_rank"),
    ),
    "calls": (
        *("name", "norm", "norm_ranks", "norm_curve"),
        *("grad_out", "grad_out_ranks", "grad_out_curve", "nonfinite"),
    ),
    "attention": (
        *("name", "logit_max", "logit_max_curve", "evenness", "evenness_curve", "sink"),
        *("masked_rows", "nan_rows"),
    ),
    "experts": ("name", "most", "unused", "effective", "effective_curve", "entropy", "dropped"),
    "residual": ("name", "rms", "rms_curve", "added", "max_to_median", "kurtosis"),
}
#: Columns that are shown only if a value is not zero.
_RARE = ("masked_rows", "nan_rows", "dropped")


@dataclass(frozen=True, slots=True)
class SeriesRow:
    """A layer's series, with the steps of each measure, the width of its curves, and the number of
    layers in the row.

    A curve covers the steps at which any row has the measure; ``places`` numbers them.
    """

    series: LayerSeries
    places: Callable[[str], Mapping[int, int]]
    room: int = 24
    times: int = 1
    _courses: dict[str, Course] = field(default_factory=dict, compare=False)

    @property
    def about(self) -> str:
        """The parameter or the call: the key of the row in a page."""
        return label(self.series.name, self.series.call)

    def course(self, measure: str) -> Course:
        """Return a measure at every step that has it."""
        found = self._courses.get(measure)
        if found is None:
            found = self._courses[measure] = self.series.course(measure)
        return found

    def ends(self, measure: str) -> list[tuple[float | None, bool]]:
        """Return the first and the last value (one if there is one), and True for NaN or Inf."""
        steps, values, lost = self.course(measure)
        places = (0, -1) if len(steps) > 1 else (0,) if steps else ()
        return [(values[i], steps[i] in lost) for i in places]

    def curve(self, measure: str) -> str:
        """Return a measure as a curve of blocks."""
        (steps, values, lost), at = self.course(measure), self.places(measure)
        places, gone = [at[step] for step in steps], [at[step] for step in lost]
        return curve(places, values, gone, first=0, last=len(at) - 1, width=self.room)

    def known(self, measure: str) -> list[float]:
        """Return the finite values of a measure."""
        values = self.course(measure).values
        return [x for x in values if x is not None and math.isfinite(x)]

    def spread(self, measure: str) -> tuple[float, float] | None:
        """Return the smallest and the largest value of a measure over ranks, at its last step."""
        lowest, highest = self.series.lowest.get(measure, ()), self.series.highest.get(measure, ())
        for low, high in zip(reversed(lowest), reversed(highest), strict=True):
            if low is not None and high is not None:
                return low, high
        return None

    @property
    def change(self) -> float:
        """Return the change of the gradient's norm from the first step to the last, in powers of
        ten."""
        norms: Sequence[float | None]
        if self.series.norms is not None and self.series.norms.steps:
            norms = self.series.norms.gradient
        else:
            norms = self.course("grad_norm" if self.series.call is None else "grad_out_norm").values
        found = [next(filter(_is_known, way), None) for way in (norms, reversed(norms))]
        known = [x for x in found if x is not None]
        if not known or known[0] == known[-1]:
            return 0.0
        ends = [math.log10(x) if x > 0 else -400.0 for x in known]
        return abs(ends[1] - ends[0])

    @property
    def lost(self) -> list[int]:
        """Return the steps at which the row's tensor had a NaN or Inf."""
        found = set(lost_steps(self.series))
        if self.series.norms is not None:
            found.update(*(steps_lost(*self.series.norms.of(measure)) for measure in NORMS))
        return sorted(found)


def _is_known(norm: float | None) -> bool:
    return norm is not None and number_or_none(norm) is not None


def lost_steps(series: LayerSeries) -> list[int]:
    """Return the steps at which one of a layer's tensors had a NaN or Inf."""
    counts = [n for key, n in series.values.items() if key.endswith("nonfinite")]
    steps = zip(series.steps, *counts, strict=True)
    return [step for step, *several in steps if any(several)]


def _text(value: float | None, lost: bool, figure: Figure, absent: str) -> str:
    text = absent if value is None else figure(value)
    if not lost:
        return text
    return NOT_FINITE if value is None else text + NOT_FINITE


def _course(row: SeriesRow, measure: str, figure: Figure) -> str:
    absent = MISSING if measure.startswith("grad") else NOT_THERE
    return TO.join(_text(value, lost, figure, absent) for value, lost in row.ends(measure))


def _last(row: SeriesRow, measure: str) -> float | None:
    values = row.course(measure).values
    return values[-1] if values else None


def _bad(row: SeriesRow, text: str) -> str:
    return "bad" if NOT_FINITE in text else ""


def _at(which: Callable[[list[float]], float], row: SeriesRow, measure: str) -> float | None:
    known = row.known(measure)
    return which(known) if known else None


def _measured(key: str, measure: str) -> Iterator[Column[SeriesRow]]:
    """Yield a measure's columns: first to last value, curve, and figures."""
    last = partial(_last, measure=measure)
    written: Figure = share if key in ("zeros", "decay", *SHARES) else number
    course = partial(_course, measure=measure, figure=written)

    def needed(rows: Sequence[SeriesRow]) -> bool:
        known = (row.known(measure) for row in rows)
        return any(any(one) for one in known) if key in _RARE else any(known)

    def over_steps(rows: Sequence[SeriesRow]) -> bool:
        return needed(rows) and any(len(row.course(measure).steps) > 1 for row in rows)

    yield Column(key, last, course, last, tone=_bad, needed=needed)

    def drawn(row: SeriesRow) -> str:
        return row.curve(measure)

    curves = Column(f"{key}_curve", drawn, drawn, last, right=False, tone=_bad, needed=over_steps)
    yield replace(curves, beside=key)
    yield over_ranks(f"{key}_ranks", lambda row: row.spread(measure), written)
    ends: dict[str, Callable[[list[float]], float]] = {
        **{"first": lambda known: known[0], "last": lambda known: known[-1]},
        **{"min": min, "max": max},
    }
    for word, which in ends.items():
        yield figure(f"{key}_{word}", partial(_at, which, measure=measure), written)


def _name(row: SeriesRow) -> str:
    times = f" ×{row.times}" if row.times > 1 else ""
    if row.series.call is None:
        return plain(row.series.name) + times
    return label(row.series.name, row.series.call) + times


def _register(table: str, measures: Mapping[str, str]) -> dict[str, Column[SeriesRow]]:
    columns = [words("name", lambda r: r.series.name, _name, wraps=True, needed=lambda rows: True)]
    if table in ("parameters", "updates"):
        columns.append(words("shape", lambda r: shape(r.series.shape) if r.series.shape else ""))
    elif table == "calls":
        columns.append(words("type", lambda row: next(iter(row.series.types), "")))
    for key, measure in measures.items():
        columns += _measured(key, measure)
    nonfinite: Column[SeriesRow] = Column(
        "nonfinite",
        lambda row: len(row.lost),
        lambda row: losses(row.lost),
        lambda row: len(row.lost) or None,
        tone=lambda row, text: "bad" if text else "",
        needed=lambda rows: any(row.lost for row in rows),
    )
    usual = USUAL[table]
    return {
        column.key: replace(
            column,
            keep=_KEEP.get(column.key, 0),
            needed=column.needed if column.key in usual else None,
        )
        for column in [*columns, figure("change", lambda row: row.change), nonfinite]
    }


COLUMNS = {
    "parameters": _register("parameters", PARAMETERS),
    "updates": _register("updates", PARAMETERS),
    "calls": _register("calls", CALLS),
    **{kind: _register(kind, measures) for kind, measures in TRANSFORMER.items()},
}


#: The most rows in a terminal, unless the user asks for others; a pipe gets all.
MANY, FEW = 40, 24


def table(history: RunHistory, title: str, view: View) -> Table | None:
    """Return the table named by ``title``: parameters, calls or others; None if nothing was
    recorded."""
    series = _series(history, title)
    if not series:
        return None
    registry = COLUMNS[title]
    width = 160 if view.width is None else view.width
    room = 24 if width >= 160 else 16 if width >= 120 else 12 if width >= 80 else 8
    places = _places(series)
    rows = [SeriesRow(one, places, room) for one in series]
    entries = _folded(rows) if view.fold else [single((row,)) for row in rows]
    chosen, caption, remark = _chosen(entries, history, title, view)
    shown = [entry.shown for entry in chosen]
    everything = [row for entry in chosen for row in entry.rows]
    asked = view.columns if title == (view.table or "parameters") else None
    columns, headings = chosen_columns(
        registry, USUAL[title], everything, asked, [sort_column(view)]
    )
    texts = _aligned(cells(columns, shown, list(map(single, shown))))
    option = view.option(f"--table {title} --columns")
    return Table(
        title,
        headings,
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
