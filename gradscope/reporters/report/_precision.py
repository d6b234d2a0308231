"""Losses of narrower dtypes → one table for each dtype, the worst layers first."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from gradscope.records.report import PrecisionForecast
from gradscope.reporters.labels import label
from gradscope.typeset.numbers import count, plural, share
from gradscope.typeset.tables import KEEP, Cell, Heading, Table
from gradscope.typeset.text import plain

#: So many layers are in a table; the others lose less, and the caption counts them.
SHOWN = 10
#: Of a safe scale: no gradient overflows, and of the parameters' no more than this becomes zero.
_LOST = 0.01
LEGEND = (
    "↓ flushes to zero, ↑ overflows: shares of the elements that are not zero",
    "a safe scale: no gradient overflows, and of the parameters' at most "
    f"{100 * _LOST:g} % flush to zero",
)
_Losses = dict[str, tuple[float, float]]


def tables(forecasts: Sequence[PrecisionForecast], top: int | None = None) -> list[Table]:
    """A table for each dtype: shares that a cast loses, by loss scale.

    Layers that lose nothing are counted, not listed; the caption has the smallest safe scale.
    """
    return [
        _table(dtype, [f for f in forecasts if f.dtype == dtype], SHOWN if top is None else top)
        for dtype in dict.fromkeys(forecast.dtype for forecast in forecasts)
    ]


def safe_scale(forecasts: Sequence[PrecisionForecast]) -> float | None:
    """The smallest loss scale that is safe for the full model; None where none of those tried."""
    safe = (f.scale for f in forecasts if f.overflow == 0 and f.underflow <= _LOST)
    return min(safe, default=None)


def scale(x: float) -> str:
    """``1``, ``2^16``: a loss scale as mixed precision speaks of it."""
    power = math.log2(x) if x > 0 else 0.5
    if power.is_integer() and power >= 4:
        return f"2^{int(power)}"
    return f"{x:g}"


def _table(dtype: str, forecasts: Sequence[PrecisionForecast], top: int) -> Table:
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
