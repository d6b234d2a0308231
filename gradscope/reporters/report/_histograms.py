"""Histograms as tables: a row for each power of two, or for several where they span many."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gradscope.records.full_samples import Histogram
from gradscope.reporters.labels import label
from gradscope.typeset.bars import bar
from gradscope.typeset.numbers import count, number, plural, share
from gradscope.typeset.tables import Heading, Table, of_columns
from gradscope.typeset.text import plain

#: The most rows of one histogram, and a bar's length in cells.
_ROWS, _CELLS = 20, 12


def tables(histograms: Sequence[Histogram]) -> Iterator[Table]:
    """One for each histogram."""
    for histogram in histograms:
        yield _table(histogram)


def title(histogram: Histogram) -> str:
    """What it is of."""
    path = plain(histogram.path)
    if histogram.call is None:
        return path if histogram.kind == "value" else f"{path} gradient"
    place = f" → {path}" if path else ""
    return f"{label(histogram.name, histogram.call)}{place} {histogram.kind}"


def _table(histogram: Histogram) -> Table:
    width = max(1, -(-len(histogram.positive) // _ROWS))
    # Rows begin at multiples of their width, so that two histograms of one width can be compared.
    start = histogram.first - histogram.first % width
    padding = (0,) * (histogram.first - start)
    sides = [_merged((*padding, *side), width) for side in (histogram.negative, histogram.positive)]
    top = max((n for side in sides for n in side), default=0)
    below, above = ([count(n) if n else "" for n in side] for side in sides)
    bars = [[bar(n / top, _CELLS) if n else "" for n in side] for side in sides]
    edges = [number(2.0 ** (start + i * width)) for i in range(len(sides[0]))]
    made = of_columns(
        f"histogram of {title(histogram)}",
        [
            (Heading("|x| from"), edges),
            (Heading("negative"), below),
            (Heading("", False, 50), bars[0]),
            (Heading("positive"), above),
            (Heading("", False, 50), bars[1]),
        ],
    )
    legend = f"each row holds |x| up to the next one's: a factor of {2**width}"
    return Table(made.title, made.columns, made.rows, _facts(histogram), (legend,) if edges else ())


def _merged(counts: Sequence[int], width: int) -> list[int]:
    return [sum(counts[i : i + width]) for i in range(0, len(counts), width)]


def _facts(histogram: Histogram) -> str:
    facts = [plural(histogram.numel, "value")]
    if histogram.zeros:
        facts.append(f"{share(histogram.zeros, histogram.numel)} zero")
    facts += [
        f"{count(n)} {word}" for n, word in ((histogram.nan, "nan"), (histogram.inf, "inf")) if n
    ]
    return " · ".join(facts)
