"""Selects and sorts columns of a table by the names that the user types, and makes cells of
entries."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from gradscope.errors import OptionError, did_you_mean
from gradscope.reporters.views import View
from gradscope.typeset.numbers import count, number, plural
from gradscope.typeset.sparklines import log_bars
from gradscope.typeset.tables import Cell, Heading
from gradscope.typeset.text import natural, plain

Row = TypeVar("Row")
Scalar = str | int | float | bool | None
Rank = float | str | None
Key = tuple[float, tuple[tuple[int, int, str], ...]]


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    """One column: its exact value for machines, its text for readers, its rank for sorting.

    ``needed`` returns True if the usual table shows it for these rows; None: never.
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
    """Return the column, needed if any row has a value in it."""
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


def known(key: str, registry: Iterable[str]) -> str:
    """``key``, if it names a column.

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
    """``norm:asc`` as column and direction: True ascends, None is the column's own.

    Raises:
        OptionError: a direction other than asc and desc.
    """
    key, colon, direction = sort.partition(":")
    if colon and direction not in ("asc", "desc"):
        raise OptionError(
            f"unknown direction `{direction}` in `--sort {sort}`", help="write `:asc` or `:desc`"
        )
    return key, direction == "asc" if colon else None


def ordered(
    entries: Sequence[Entry[Row]], column: Column[Row], up: bool | None
) -> list[Entry[Row]]:
    """Sorts entries by the column: numbers descend, text ascends, missing values come last.

    The position of an entry is that of its foremost row.
    """
    ascending = column.ascending if up is None else up
    ranked: list[tuple[Key, Entry[Row]]] = []
    rest: list[Entry[Row]] = []
    for entry in entries:
        ranks = [_comparable(r) for r in map(column.rank, entry.rows) if r is not None]
        if ranks:
            ranked.append((min(ranks) if ascending else max(ranks), entry))
        else:
            rest.append(entry)
    # sorted() is stable both ways, so equal values keep the order of execution.
    ranked = sorted(ranked, key=lambda pair: pair[0], reverse=not ascending)
    return [entry for _, entry in ranked] + rest


def _comparable(rank: float | str) -> Key:
    return (0.0, natural(rank)) if isinstance(rank, str) else (rank, ())


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
    """The headings and cells with bars after ``column``; ``members`` are the rows of each row.

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
