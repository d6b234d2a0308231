"""Selects and sorts columns of a table by the names that the user types, and makes cells of
entries; a tensor's statistics as columns, the same for activations, gradients and parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import Any, Generic, TypeVar

from gradscope.errors import OptionError, did_you_mean
from gradscope.records.tensors import TensorStats
from gradscope.reporters.views import View
from gradscope.typeset.numbers import NOT_THERE, count, number, plural, share
from gradscope.typeset.sparklines import log_bars
from gradscope.typeset.tables import KEEP, Cell, Heading
from gradscope.typeset.text import natural, plain

Row = TypeVar("Row")
Scalar = str | int | float | bool | None
Rank = float | str | None
Key = tuple[float, tuple[tuple[int, int, str], ...]]


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    """One column: its exact value for machines, its text for readers, its rank for sorting.

    ``needed`` returns True if the usual table shows it for these rows; None: never. ``wraps`` and
    ``beside`` are as in ``Heading``.
    """

    key: str
    value: Callable[[Row], Scalar]
    text: Callable[[Row], str]
    rank: Callable[[Row], Rank]
    right: bool = True
    ascending: bool = False
    keep: int = 0
    needed: Callable[[Sequence[Row]], bool] | None = None
    tone: Callable[[Row, str], str] = lambda row, text: ""
    wraps: bool = False
    beside: str = ""


def words(
    key: str, value: Callable[[Row], Scalar], text: Callable[[Row], str] | None = None, **more: Any
) -> Column[Row]:
    """Return a column of text: the value as text, if there is no other."""

    def show(row: Row) -> str:
        exact = value(row)
        known = "" if exact is None else str(exact)
        return plain(known.lower() if isinstance(exact, bool) else known)

    return Column(key, value, text or show, value, **{"right": False, "ascending": True, **more})


def figure(
    key: str, value: Callable[[Row], Any], text: Callable[[Any], str] = number, **more: Any
) -> Column[Row]:
    """Return a column of numbers, formatted by ``text``; a row without a value is empty."""

    def show(row: Row) -> str:
        exact = value(row)
        return "" if exact is None else text(exact)

    return Column(key, value, show, value, **more)


def over_ranks(
    key: str,
    ends: Callable[[Row], tuple[float, float] | None],
    text: Callable[[float], str] = number,
) -> Column[Row]:
    """Return the column of the smallest and the largest value over processes, needed if any row has
    them."""

    def width(row: Row) -> float | None:
        found = ends(row)
        return None if found is None else found[1] - found[0]

    def show(row: Row) -> str:
        return "–".join(dict.fromkeys(map(text, ends(row) or ())))

    return having(Column(key, width, show, width))


def having(column: Column[Row]) -> Column[Row]:
    """Return the column such that the usual table shows it if any row has a value in it."""
    return replace(column, needed=lambda rows: any(map(column.text, rows)))


def placed(column: Column[Row], keep: Mapping[str, int], usual: Collection[str]) -> Column[Row]:
    """Return the column with its priority; a usual one is shown if any row has a value in it."""

    def needed(rows: Sequence[Row]) -> bool:
        if column.key.endswith("nonfinite"):
            return any(column.value(row) for row in rows)
        if column.key in ("update", "ratio", "flops", "time", "norm_ranks", "grad_out_ranks"):
            return any(column.value(row) is not None for row in rows)
        return bool(rows)

    shown = needed if column.key in usual else None
    return replace(column, keep=keep.get(column.key, 0), needed=shown)


@dataclass(frozen=True, slots=True)
class Entry(Generic[Row]):
    """Rows that are sorted and counted as one: the shown rows, and the rows that each replaces."""

    shown: tuple[Row, ...]
    members: tuple[tuple[Row, ...], ...]

    @property
    def rows(self) -> tuple[Row, ...]:
        """Every row that this entry represents."""
        return tuple(row for stood_for in self.members for row in stood_for)


def single(group: tuple[Row, ...]) -> Entry[Row]:
    """Return an entry for each row."""
    return Entry(group, tuple((row,) for row in group))


def pick(
    registry: Mapping[str, Column[Row]],
    asked: Sequence[str] | None,
    usual: Sequence[str],
    first: Sequence[str],
    hidden: Iterable[str] = (),
) -> list[Column[Row]]:
    """Return the columns to show: the usual ones, the requested ones, or both if requested with
    ``+``.

    ``first`` come first unless the request places them elsewhere; ``all`` is every column except
    the ``hidden`` ones.

    Raises:
        OptionError: there is no such column.
    """
    if not asked:
        return [registry[key] for key in usual]
    keys: list[str] = list(usual) if any(word.startswith("+") for word in asked) else []
    for word in asked:
        key = word.removeprefix("+")
        keys += [k for k in registry if k not in set(hidden)] if key == "all" else [key]
    for key in keys:
        known(key, registry)
    keys[:0] = [key for key in first if key not in keys]
    return [registry[key] for key in dict.fromkeys(keys)]


def chosen_columns(
    registry: Mapping[str, Column[Row]],
    usual: Sequence[str],
    rows: Sequence[Row],
    asked: Sequence[str] | None,
    lead: Iterable[str | None],
    hidden: Iterable[str] = (),
) -> tuple[list[Column[Row]], tuple[Heading, ...]]:
    """Return the columns of a table, as ``pick``, and their headings.

    A usual column is shown if the rows need it. A column in ``lead``, such as the one
    by which the table is sorted, is one of them, and no width hides it.
    """
    leading = [key for key in lead if key in registry]
    needed = [key for key in usual if (need := registry[key].needed) is not None and need(rows)]
    keys = list(dict.fromkeys((*needed, *(key for key in leading if key))))
    columns = pick(registry, asked, keys, usual[:1], hidden)
    return columns, tuple(
        Heading(c.key, c.right, KEEP if c.key in leading else c.keep, c.wraps, beside=c.beside)
        for c in columns
    )


def known(key: str, registry: Iterable[str]) -> str:
    """Return ``key``, if it names a column.

    Raises:
        OptionError: it names none; the message lists the columns.
    """
    choices = list(registry)
    if key in choices:
        return key
    raise OptionError(
        f"unknown column `{key}`",
        help=did_you_mean(key, choices),
        notes=[f"the columns are {', '.join(_brief(choices))}"],
    )


def _brief(keys: Sequence[str]) -> list[str]:
    """Return the keys in short: statistics of gradients by example only, because they equal those
    of activations."""
    details = [key for key in keys if key.startswith("grad_") and key.split("_")[-1] in keys]
    shown = [key for key in keys if key not in details and not key.endswith("_zero_count")]
    examples = [key for key in details if key.endswith(("_mean", "_nonfinite"))]
    return shown + ([f"and of gradients too: {', '.join(examples)}, …"] if examples else [])


def parse_sort(sort: str) -> tuple[str, bool | None]:
    """Split ``norm:asc`` into column and direction: True ascends, None is the column's own.

    Raises:
        OptionError: a direction other than asc and desc.
    """
    key, colon, direction = sort.partition(":")
    if colon and direction not in ("asc", "desc"):
        raise OptionError(
            f"unknown direction `{direction}` in `--sort {sort}`", help="write `:asc` or `:desc`"
        )
    return key, direction == "asc" if colon else None


def sort_column(view: View) -> str | None:
    """Return the column by which the view sorts, None without one."""
    return parse_sort(view.sort)[0] if view.sort else None


def ordered(
    entries: Sequence[Entry[Row]], column: Column[Row], up: bool | None
) -> list[Entry[Row]]:
    """Sort entries by the column: numbers descend, text ascends, missing values come last.

    The position of an entry is that of its foremost row.
    """
    ascending = column.ascending if up is None else up
    ranked: list[tuple[Key, Entry[Row]]] = []
    rest: list[Entry[Row]] = []
    for entry in entries:
        known = (rank for rank in map(column.rank, entry.rows) if rank is not None)
        ranks: list[Key] = [
            (0.0, natural(rank)) if isinstance(rank, str) else (rank, ()) for rank in known
        ]
        if ranks:
            ranked.append((min(ranks) if ascending else max(ranks), entry))
        else:
            rest.append(entry)
    # sorted() is stable both ways, so equal values keep the order of execution.
    ranked = sorted(ranked, key=lambda pair: pair[0], reverse=not ascending)
    return [entry for _, entry in ranked] + rest


def select(
    entries: Sequence[Entry[Row]], registry: Mapping[str, Column[Row]], view: View, noun: str
) -> tuple[list[Entry[Row]], str]:
    """Return the requested entries in order, and a caption if they are not all."""
    chosen, by = list(entries), ""
    if view.sort:
        key, up = parse_sort(view.sort)
        if key in registry:
            chosen, by = ordered(chosen, registry[key], up), f"sorted by {view.sort}"
    total = len(chosen)
    if view.top is not None and view.top < total:
        shown = f"{count(view.top)} of {plural(total, noun)} shown"
        return chosen[: view.top], f"{shown}, {by}" if by else shown
    return chosen, by


def cells(
    columns: Sequence[Column[Row]],
    marked: Sequence[tuple[Row, ...]],
    entries: Sequence[Entry[Row]],
) -> tuple[tuple[Cell, ...], ...]:
    """Return a line of cells for each row to show; the marked rows are the entries' own."""
    return tuple(
        tuple(_cell(column, row, members) for column in columns)
        for rows, entry in zip(marked, entries, strict=True)
        for row, members in zip(rows, entry.members, strict=True)
    )


def _cell(column: Column[Row], row: Row, members: Sequence[Row]) -> Cell:
    if len(members) == 1 or not column.right:
        text = column.text(row)
        return Cell(text, column.tone(row, text))
    texts = [column.text(member) for member in members]
    tones = {column.tone(member, text) for member, text in zip(members, texts, strict=True)}
    worst = next((tone for tone in ("bad", "warn") if tone in tones), "")
    return Cell(span(texts, [column.rank(member) for member in members]), worst)


def span(texts: Sequence[str], ranks: Sequence[Any]) -> str:
    """Return the texts of several rows as one: lowest to highest, if they differ."""
    if len(set(texts)) == 1:
        return texts[0]
    pairs = zip(ranks, texts, strict=True)
    known = sorted(((r, t) for r, t in pairs if isinstance(r, int | float)), key=lambda p: p[0])
    rest = [text for rank, text in zip(ranks, texts, strict=True) if rank is None and text]
    ends = dict.fromkeys((known[0][1], known[-1][1])) if known else {}
    return ", ".join(dict.fromkeys(["…".join(ends), *rest])).strip(", ")


def folds(entries: Sequence[Entry[Row]]) -> list[str]:
    """Return the remark on folded rows, if there are any."""
    if all(len(members) == 1 for entry in entries for members in entry.members):
        return []
    return ["×n: n blocks that look the same, one after the other; a…b spans their values"]


_TITLE = "log scale"

Cells = tuple[tuple[Cell, ...], ...]


def with_bars(
    column: Column[Row],
    columns: Sequence[Column[Row]],
    headings: tuple[Heading, ...],
    cells: Cells,
    members: Sequence[Sequence[Row]],
) -> tuple[tuple[Heading, ...], Cells]:
    """Return headings and cells with bars after ``column``; ``members`` are the rows of each row.

    A row that represents several has the bar of the largest.
    """
    place = [one.key for one in columns].index(column.key) + 1
    bars = log_bars([max(_magnitude(column, row) for row in rows) for rows in members])
    heading = Heading(_TITLE, False, headings[place - 1].keep)
    return (*headings[:place], heading, *headings[place:]), tuple(
        (*row[:place], Cell(bar), *row[place:]) for row, bar in zip(cells, bars, strict=True)
    )


def bars_legend(key: str) -> str:
    """Name the number that the bars show."""
    return f"{_TITLE}: of {key}, by magnitude"


def _magnitude(column: Column[Row], row: Row) -> float:
    """Return the size of a number; 0, which has no bar, for anything else."""
    value = column.rank(row)
    return abs(value) if isinstance(value, int | float) else 0.0


_RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def number_remarks(remarks: Sequence[Sequence[str]]) -> tuple[list[str], list[str]]:
    """Return the marks of each row, and the sentences in order; equal remarks share a number."""
    numbers: dict[str, str] = {}
    marks = []
    for of_row in remarks:
        for remark in of_row:
            numbers.setdefault(remark, str(len(numbers) + 1).translate(_RAISED))
        marks.append(" ".join(numbers[remark] for remark in dict.fromkeys(of_row)))
    return marks, [f"{mark} {remark}" for remark, mark in numbers.items()]


Source = Callable[[Row], TensorStats | None]
#: The cell of a row that has no such tensor.
Absent = Callable[[Row], str]
Tone = Callable[[Row, str], str]

_FLOATS = ("norm", "mean", "std", "min", "max")
_COUNTS = ("nan", "inf")

#: A mean that is zero to rounding.
NOISE = "~0"
#: Machine epsilon of each dtype, and the number of epsilons that still counts as rounding.
_EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
_ROUNDINGS = 4


def nonfinite(stats: TensorStats | None) -> int:
    """Return the number of NaN and Inf elements."""
    return 0 if stats is None else (stats.nan or 0) + (stats.inf or 0)


def statistic(stats: TensorStats, name: str) -> str:
    """Return a statistic as text; "nan" or "inf" if no element is finite."""
    lost = nonfinite(stats)
    if lost and lost >= stats.numel:
        return "inf" if not stats.nan else "nan"
    if name == "mean" and _is_noise(stats):
        return NOISE
    return number(getattr(stats, name))


def _is_noise(stats: TensorStats) -> bool:
    """Return True if rounding of the values leaves no certain digit of a non-zero mean.

    A layer's subtraction is rounded in float32 at best, in the same direction for many values. A
    half float rounds each value separately, so the mean over many values has less error.
    """
    eps = _EPSILON.get(stats.dtype)
    finite = stats.numel - nonfinite(stats)
    if eps is None or not stats.mean or not stats.norm or finite < 2:
        return False
    common = min(eps, _EPSILON["float32"])
    bound = _ROUNDINGS * max(common, eps / math.sqrt(finite))
    return abs(stats.mean) <= bound * stats.norm / math.sqrt(finite)


def strange(stats: TensorStats) -> str:
    """Return the counts of NaN and Inf: ``3 nan``, ``2 inf``, ``3 nan 2 inf``, or ""."""
    kinds = ((stats.nan or 0, "nan"), (stats.inf or 0, "inf"))
    return " ".join(f"{count(n)} {kind}" for n, kind in kinds if n) or "0"


def norm_with_losses(stats: TensorStats) -> str:
    """Return a gradient's norm, with the number of elements that the norm leaves out."""
    lost = nonfinite(stats)
    if not lost:
        return number(stats.norm)
    return strange(stats) if lost >= stats.numel else f"{number(stats.norm)} +{strange(stats)}"


def zeros(stats: TensorStats) -> str:
    """Return the share of elements that are exactly zero."""
    return NOT_THERE if stats.zeros is None else share(stats.zeros, stats.numel)


def statistics_columns(
    prefix: str, source: Source[Row], absent: Absent[Row], tone: Tone[Row]
) -> Iterator[Column[Row]]:
    """``norm``, ``mean``, … of one tensor of a row, each key after ``prefix``; ``norm`` first."""

    def column(
        name: str,
        value: Callable[[TensorStats], float | None],
        text: Callable[[TensorStats], str],
        rank: Callable[[TensorStats], float | None] | None = None,
    ) -> Column[Row]:
        def exact(row: Row) -> float | None:
            stats = source(row)
            return None if stats is None else value(stats)

        def show(row: Row) -> str:
            stats = source(row)
            return absent(row) if stats is None else text(stats)

        def compare(row: Row) -> float | None:
            stats = source(row)
            return None if stats is None else (rank or value)(stats)

        return Column(prefix + name, exact, show, compare, tone=tone)

    for name in _FLOATS:
        # A table of gradients has no separate column for NaN and Inf: the norm's column shows them.
        full = bool(prefix) and name == "norm"
        text = norm_with_losses if full else partial(statistic, name=name)
        yield column(name, attrgetter(name), text)
    yield column("zeros", attrgetter("zeros"), zeros, _fraction)
    yield column("zero_count", attrgetter("zeros"), partial(_count, name="zeros"))
    for name in _COUNTS:
        yield column(name, attrgetter(name), partial(_count, name=name))
    yield column("nonfinite", nonfinite, strange)


def _fraction(stats: TensorStats) -> float | None:
    return None if stats.zeros is None else stats.zeros / max(1, stats.numel)


def _count(stats: TensorStats, name: str) -> str:
    n = getattr(stats, name)
    return NOT_THERE if n is None else count(n)
