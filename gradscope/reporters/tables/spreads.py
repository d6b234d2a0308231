"""Histograms, and losses of narrower dtypes, as tables."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from gradscope.records.full_samples import Histogram
from gradscope.records.report import PrecisionForecast
from gradscope.reporters.header import label
from gradscope.typeset.numbers import count, number, plural, share
from gradscope.typeset.sparklines import bar
from gradscope.typeset.tables import KEEP, Cell, Heading, Table, of_columns
from gradscope.typeset.text import plain

#: The most rows of one histogram, and a bar's length in cells.
_ROWS, _CELLS = 20, 12


def histogram_tables(histograms: Sequence[Histogram]) -> Iterator[Table]:
    """Yield a table for each histogram."""
    for histogram in histograms:
        yield _histogram(histogram)


def histogram_title(histogram: Histogram) -> str:
    """Names the tensor of the histogram."""
    path = plain(histogram.path)
    if histogram.call is None:
        return path if histogram.kind == "value" else f"{path} gradient"
    place = f" → {path}" if path else ""
    return f"{label(histogram.name, histogram.call)}{place} {histogram.kind}"


def _histogram(histogram: Histogram) -> Table:
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
        f"histogram of {histogram_title(histogram)}",
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


#: Number of layers in a table; the caption counts the others, which lose less.
SHOWN = 10
#: Of a safe scale: no gradient overflows, and of the parameters' no more than this becomes zero.
_LOST = 0.01
PRECISION_LEGEND = (
    "↓ flushes to zero, ↑ overflows: shares of the elements that are not zero",
    "a safe scale: no gradient overflows, and of the parameters' gradients at most "
    f"{100 * _LOST:g} % flush to zero",
)
_Losses = dict[str, tuple[float, float]]


def precision_tables(forecasts: Sequence[PrecisionForecast], top: int | None = None) -> list[Table]:
    """A table for each dtype: shares that a cast loses, by loss scale.

    Layers that lose nothing are counted, not listed; the caption has the smallest safe scale.
    """
    return [
        _precision(dtype, [f for f in forecasts if f.dtype == dtype], SHOWN if top is None else top)
        for dtype in dict.fromkeys(forecast.dtype for forecast in forecasts)
    ]


def safe_scale(forecasts: Sequence[PrecisionForecast]) -> float | None:
    """Return the smallest loss scale that is safe for the full model; None if none of the tried
    ones is."""
    safe = (f.scale for f in forecasts if f.overflow == 0 and f.underflow <= _LOST)
    return min(safe, default=None)


def scale(x: float) -> str:
    """``1``, ``2^16``: a loss scale as mixed precision speaks of it."""
    power = math.log2(x) if x > 0 else 0.5
    if power.is_integer() and power >= 4:
        return f"2^{int(power)}"
    return f"{x:g}"


def _precision(dtype: str, forecasts: Sequence[PrecisionForecast], top: int) -> Table:
    scales = sorted({f.scale for f in forecasts if f.kind == "gradient"})
    keys = ["activation"] * any(f.kind == "activation" for f in forecasts)
    keys += [f"grad ×{scale(s)}" for s in scales]
    rows: dict[str, _Losses] = {}
    for f in forecasts:
        if f.kind == "total":
            continue
        key = "activation" if f.kind == "activation" else f"grad ×{scale(f.scale)}"
        losses = rows.setdefault(label(f.name, f.call), {})
        # A call with several outputs is as bad as its worst.
        before = losses.get(key, (0.0, 0.0))
        losses[key] = (max(before[0], f.underflow), max(before[1], f.overflow))
    losing = {name: losses for name, losses in rows.items() if _total(losses) > 0}
    worst = sorted(losing, key=lambda name: -_total(losing[name]))
    shown = tuple(
        (Cell(name), *(_cell(losing[name].get(key)) for key in keys)) for name in worst[:top]
    )
    columns = (
        Heading("layer", right=False, wraps=True),
        *(Heading(key, keep=KEEP - 10 - i) for i, key in enumerate(keys)),
    )
    counts = ", ".join(_counts(len(rows), len(losing), len(shown)))
    return Table(plain(dtype), columns, shown, _verdict(forecasts), (counts,))


def _verdict(forecasts: Sequence[PrecisionForecast]) -> str:
    totals = [f for f in forecasts if f.kind == "total"]
    if not totals:
        return ""
    safest = safe_scale(totals)
    if safest is None:
        return f"no safe loss scale up to {scale(max(f.scale for f in totals))}"
    return "needs no loss scale" if safest == 1 else f"smallest safe loss scale {scale(safest)}"


def _counts(places: int, losing: int, shown: int) -> Iterator[str]:
    if not losing:
        yield f"none of {plural(places, 'place')} loses anything"
        return
    yield f"{count(losing)} of {plural(places, 'place')} lose something"
    if shown < losing:
        yield f"the worst {count(shown)} are shown"


def _total(losses: _Losses) -> float:
    return sum(under + over for under, over in losses.values())


def _cell(loss: tuple[float, float] | None) -> Cell:
    if loss is None:
        return Cell("")
    under, over = loss
    losses = [f"{share(under, 1)} ↓"] * (under > 0) + [f"{share(over, 1)} ↑"] * (over > 0)
    tone = "bad" if over > 0 else "warn" if under > 0.01 else ""
    return Cell(" ".join(losses) or "0", tone)
