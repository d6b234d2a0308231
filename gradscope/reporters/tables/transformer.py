"""Attention, experts and residual stream as tables: a row for each attention, routing or block."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gradscope.records.report import Report
from gradscope.records.transformer import (
    MEASURES,
    PROBES,
    AttentionCall,
    ExpertCall,
    Figure,
    Figures,
    TransformerCall,
    figures_of,
)
from gradscope.reporters.header import label
from gradscope.reporters.tables.columns import (
    Column,
    Entry,
    Scalar,
    cells,
    chosen_columns,
    figure,
    folds,
    select,
    single,
    sort_column,
    words,
)
from gradscope.reporters.tables.folding import fold_named
from gradscope.reporters.views import View
from gradscope.typeset.numbers import count, number, share
from gradscope.typeset.sparklines import levels
from gradscope.typeset.tables import KEEP, Table

#: More heads or experts than this are drawn as this many groups, each by its minimum.
_WIDEST = 32


def mean(known: Sequence[float]) -> float:
    """Return the mean of the heads."""
    return sum(known) / len(known)


def zeros(known: Sequence[float]) -> float:
    """Return the number of experts without a token."""
    return float(sum(one == 0 for one in known))


Reduce = Callable[[Sequence[float]], float]
#: The columns of each table: the measure, how it is reduced over heads or experts, what it means.
REDUCED: dict[str, dict[str, tuple[str, Reduce, str]]] = {
    "attention": {
        "logit_max": ("logit_max", max, "the largest logit of any head"),
        "entropy": ("entropy", mean, "in nats, mean over heads"),
        "entropy_min": ("entropy_min", min, "the lowest of any row"),
        "evenness": ("evenness", mean, "entropy ÷ ln(visible keys): 0 is one key, 1 uniform"),
        "sink": ("sink", max, "weight on the first key, of the head with the most"),
        "ahead": ("ahead", max, "weight on the keys after the query, of the head with the most"),
        "masked_rows": ("masked_rows", max, "rows whose keys are all masked"),
        "nan_rows": ("nan_rows", max, "rows with a NaN weight"),
    },
    "experts": {
        "least": ("share", min, "the least loaded expert's share of the assignments"),
        "most": ("share", max, "the most loaded expert's"),
        "unused": ("share", zeros, "experts that got no token"),
        "effective": ("effective", max, "exp(entropy of the shares): equally loaded experts"),
        "entropy": ("entropy", max, "of the router's probabilities, in nats, mean over tokens"),
        "dropped": ("dropped", max, "assignments that no expert processed"),
    },
    "residual": {
        "rms": ("rms", max, "of the block's output"),
        "kurtosis": ("kurtosis", max, "3 is normal"),
        "max_to_median": ("max_to_median", max, "largest magnitude ÷ median magnitude"),
        "largest": ("largest", max, "the largest magnitude"),
        "added": ("added", max, "‖output − input‖ ÷ ‖output‖"),
        "cosine": ("cosine", max, "of output and input"),
    },
}
SHARES = ("sink", "ahead", "masked_rows", "nan_rows", "least", "most", "dropped", "added")
_RARE = ("masked_rows", "nan_rows", "dropped")
#: The name of one row of each table.
NOUNS = {"attention": "attention", "experts": "routing", "residual": "block"}
NOTHING = {
    "attention": "no attention was found: no scaled_dot_product_attention, no softmax of q·k",
    "experts": "no experts were found: nothing routes by top-k",
    "residual": "no residual stream was found: no repeated block adds to its input",
}
PARTS = {"attention": "head", "experts": "expert"}
_USUAL = {
    "attention": (
        *("name", "heads", "keys", "logit_max", "entropy", "entropy_min", "evenness", "by_head"),
        *("sink", "masked_rows", "nan_rows"),
    ),
    "experts": (
        *("name", "experts", "top_k", "tokens", "least", "most", "unused", "by_expert"),
        *("effective", "entropy", "dropped"),
    ),
    "residual": ("name", "rms", "kurtosis", "max_to_median", "added", "cosine"),
}
_KEEP = {
    **{"name": KEEP, "logit_max": KEEP, "effective": KEEP, "rms": KEEP, "nan_rows": KEEP},
    **{"masked_rows": 95, "evenness": 90, "most": 90, "added": 90, "max_to_median": 85},
    **{"unused": 80, "sink": 75, "entropy": 70, "cosine": 70, "by_head": 60, "by_expert": 60},
    **{"entropy_min": 50, "least": 50, "kurtosis": 50, "heads": 40, "experts": 40, "top_k": 30},
}


def reduced(figures: Figures, reduce: Reduce) -> Figure:
    """Reduce the figures of all heads or experts to one; None if none is known."""
    if not isinstance(figures, tuple):
        return figures
    known = [one for one in figures if one is not None]
    return reduce(known) if known else None


@dataclass(frozen=True, slots=True)
class PartRow:
    """A record, and how many like it the row stands for."""

    call: TransformerCall
    times: int = 1

    @property
    def about(self) -> str:
        """Label of the call, by which a page finds the row."""
        return label(self.call.name, self.call.call)


def _columns(kind: str) -> Iterator[Column[PartRow]]:
    def name(row: PartRow) -> str:
        part = f", part {row.call.part}" if row.call.part else ""
        times = f" ×{row.times}" if row.times > 1 else ""
        return label(row.call.name, row.call.call) + part + times

    yield words("name", lambda row: row.call.name, name, wraps=True)
    yield from _facts(kind)
    for key, (measure, reduce, _) in REDUCED[kind].items():
        written = share if key in SHARES else _integer if key == "unused" else number

        def value(row: PartRow, measure: str = measure, reduce: Reduce = reduce) -> Figure:
            return reduced(getattr(row.call, measure), reduce)

        yield figure(key, value, written, tone=_tone if key == "nan_rows" else lambda row, text: "")
        if (key, kind) == ("evenness", "attention"):
            yield words("by_head", lambda row: _drawn(row.call), ascending=False)
        if (key, kind) == ("unused", "experts"):
            yield words("by_expert", lambda row: _drawn(row.call), ascending=False)


def _facts(kind: str) -> Iterator[Column[PartRow]]:
    def fact(name: str) -> Callable[[PartRow], Any]:
        return lambda row: getattr(row.call, name)

    def length(name: str) -> Callable[[PartRow], int]:
        return lambda row: len(getattr(row.call, name))

    if kind == "attention":
        yield figure("heads", length("evenness"), count)
        for name in ("queries", "keys", "rows"):
            yield figure(name, fact(name), count)
        yield words("op", fact("op"))
    elif kind == "experts":
        yield figure("experts", length("share"), count)
        yield figure("top_k", fact("top_k"), count)
        yield figure("tokens", fact("tokens"), count)
    else:
        yield words("dtype", fact("dtype"))


def _integer(x: float) -> str:
    return count(int(x))


def _tone(row: PartRow, text: str) -> str:
    return "bad" if text not in ("", "0") else ""


def _drawn(call: TransformerCall) -> str:
    """Return a block for each head or expert."""
    if isinstance(call, AttentionCall):
        return levels(_stretched(call.evenness), 1.0)
    if isinstance(call, ExpertCall):
        return levels(_stretched(call.share), max((x for x in call.share if x), default=0.0))
    return ""


def _stretched(values: Sequence[Figure]) -> list[Figure]:
    n = min(len(values), _WIDEST)
    parts = [values[i * len(values) // n : (i + 1) * len(values) // n] for i in range(n)]
    return [min((x for x in part if x is not None), default=None) for part in parts]


def _register(kind: str) -> dict[str, Column[PartRow]]:
    def needed(column: Column[PartRow]) -> Callable[[Sequence[PartRow]], bool]:
        if column.key in _RARE:
            return lambda rows: any(column.value(row) for row in rows)
        return bool

    return {
        column.key: replace(
            column,
            keep=_KEEP.get(column.key, 0),
            needed=needed(column) if column.key in _USUAL[kind] else None,
        )
        for column in _columns(kind)
    }


COLUMNS: Mapping[str, dict[str, Column[PartRow]]] = {kind: _register(kind) for kind in PROBES}


def table(report: Report, kind: str, view: View) -> Table | None:
    """Return the records of a kind; None if there are none."""
    rows = _rows(report, kind, view)
    if not rows:
        return None
    registry = COLUMNS[kind]
    entries = _folded(rows) if view.fold else [single((row,)) for row in rows]
    chosen, caption = select(entries, registry, view, NOUNS[kind])
    every = [row for entry in chosen for row in entry.rows]
    asked = view.columns if view.table == kind else None
    columns, headings = chosen_columns(registry, _USUAL[kind], every, asked, [sort_column(view)])
    return Table(
        kind,
        headings,
        cells(columns, [entry.shown for entry in chosen], chosen),
        caption,
        (*folds(chosen), *_legend(kind, [c.key for c in columns], every)),
        fixed=bool(asked),
        remedy=f"use --table {kind} --columns or a wider terminal",
        names=tuple(row.about for entry in chosen for row in entry.shown),
    )


def _rows(report: Report, kind: str, view: View) -> list[PartRow]:
    calls: Sequence[TransformerCall] = getattr(report, kind)
    return [PartRow(call) for call in calls if view.holds(call.name)]


def _folded(rows: Sequence[PartRow]) -> list[Entry[PartRow]]:
    def signature(row: PartRow) -> tuple[object, ...]:
        call = row.call
        sizes = [len(x) if isinstance(x, tuple) else 1 for x in _figures(call).values()]
        return type(call), call.call, call.part, *sizes, getattr(call, "keys", None)

    def renamed(name: str, several: Sequence[PartRow]) -> PartRow:
        return PartRow(replace(several[0].call, name=name), len(several))

    return fold_named(rows, lambda row: row.call.name, signature, renamed)


def _figures(call: TransformerCall) -> dict[str, Figures]:
    kind = next(k for k, of in _KINDS.items() if isinstance(call, of))
    return figures_of(kind, call)


_KINDS: dict[str, type] = {"attention": AttentionCall, "experts": ExpertCall, "residual": object}


def _legend(kind: str, keys: Sequence[str], rows: Sequence[PartRow]) -> Iterator[str]:
    for key, (_, _, meaning) in REDUCED[kind].items():
        if key in keys:
            yield f"{key}: {meaning}"
    if "by_head" in keys:
        yield "by_head: evenness of each head, from 0 to 1"
    if "by_expert" in keys:
        yield "by_expert: share of each expert, beside the largest"
    few = [row.call.rows for row in rows if isinstance(row.call, AttentionCall)]
    if few:
        ends = "–".join(dict.fromkeys((count(min(few)), count(max(few)))))
        yield f"figures are of {ends} rows of each head, evenly spaced"


def records(report: Report, kind: str, view: View) -> tuple[list[str], list[list[Scalar]]]:
    """Header and exact values: a row for each head, expert or block, with all measures."""
    part = PARTS.get(kind)
    facts = [c.key for c in _facts(kind)]
    header = ["name", "call", "part", *([part] if part else []), *facts, *MEASURES[kind]]
    rows: list[list[Scalar]] = []
    for row in _rows(report, kind, view):
        call, registry = row.call, COLUMNS[kind]
        figures = figures_of(kind, call)
        several = max((len(x) for x in figures.values() if isinstance(x, tuple)), default=1)
        for i in range(several):
            own = [x[i] if isinstance(x, tuple) else x for x in figures.values()]
            lead: list[Scalar] = [call.name, call.call, call.part, *([i] if part else [])]
            rows.append([*lead, *(registry[key].value(row) for key in facts), *own])
    return header, rows
