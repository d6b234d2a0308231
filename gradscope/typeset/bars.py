"""Bars of block characters on a log scale, for a column beside its figures."""

from __future__ import annotations

import math
from collections.abc import Sequence

#: A bar's length in cells, and its last cell in eighths.
_CELLS, _EIGHTHS = 8, " ▏▎▍▌▋▊▉"


def log_bars(values: Sequence[float | None]) -> list[str]:
    """Bars on a log scale from the least to the largest; none for zero and for nothing."""
    logs = [math.log10(v) if v else None for v in values]
    there = [x for x in logs if x is not None]
    if not there:
        return ["" for _ in values]
    top = max(there)
    span = max(top - min(there), 1.0)
    return ["" if x is None else bar(1 - (top - x) / span) for x in logs]


def bar(part: float, cells: int = _CELLS) -> str:
    """A bar of a share of its full length; what is not nothing shows."""
    eighths = max(1, round(part * cells * 8))
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
