"""Columns of a table, selected and sorted by the names that the user types."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from gradscope.errors import OptionError, did_you_mean
from gradscope.typeset.text import natural

Row = TypeVar("Row")
Scalar = str | int | float | bool | None
Rank = float | str | None
Key = tuple[float, tuple[tuple[int, int, str], ...]]


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    """One column: its exact value for machines, its text for readers, its rank for sorting.

    ``needed`` says whether the usual table shows it for these rows; None never does.
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


def placed(column: Column[Row], keep: Mapping[str, int], usual: Collection[str]) -> Column[Row]:
    """The column with its priority; one of the usual ones is shown where it says something."""

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
    """Rows that are sorted and counted as one: those shown, and what each of them stands for."""

    shown: tuple[Row, ...]
    members: tuple[tuple[Row, ...], ...]

    @property
    def rows(self) -> tuple[Row, ...]:
        """Every row that this stands for."""
        return tuple(row for stood_for in self.members for row in stood_for)


def single(group: tuple[Row, ...]) -> Entry[Row]:
    """Rows that stand for themselves."""
    return Entry(group, tuple((row,) for row in group))


def pick(
    registry: Mapping[str, Column[Row]],
    asked: Sequence[str] | None,
    usual: Sequence[str],
    first: Sequence[str],
    hidden: Iterable[str] = (),
) -> list[Column[Row]]:
    """The columns to show: the usual ones, the asked ones, or both where asked with ``+``.

    ``first`` lead unless they are asked for elsewhere; ``all`` is every column but the ``hidden``.

    Raises:
        OptionError: no such column.
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
        OptionError: it does not; says which there are.
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
    """The keys, but the statistics of gradients by example: they are those of activations."""
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
    """Entries by the column: numbers descend, text ascends, what has no value comes last.

    An entry is where its foremost row would.
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
