"""Numbers as a reader sees them: four significant digits, and nothing rounds to a false zero."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

NOT_THERE = "n/a"


def number(x: float | None) -> str:
    """Four significant digits; ``0`` is exactly zero."""
    if x is None:
        return NOT_THERE
    if x == 0:
        return "0"
    if not math.isfinite(x):
        return str(float(x))
    text = f"{x:#.4g}"
    return text.removesuffix(".")


def count(n: int) -> str:
    """Return an integer with separated thousands."""
    return f"{n:,}"


def share(part: float, full: float = 1.0) -> str:
    """Return a percentage that is 0 only for none and 100 only for all."""
    if part == 0:
        return "0"
    if part >= full:
        return "100 %"
    percent = 100 * part / full
    if percent < 0.1:
        return "<0.1 %"
    return ">99.9 %" if percent > 99.9 else f"{percent:.1f} %"


def amount(n: int) -> str:
    """Return a large count in decimal units: 1.814 G."""
    for power, unit in ((15, "P"), (12, "T"), (9, "G"), (6, "M"), (3, "k")):
        if abs(n) >= 10**power:
            return f"{number(n / 10**power)} {unit}"
    return str(n)


def size(n: int) -> str:
    """Return a number of bytes in binary units."""
    if abs(n) < 1024:
        return f"{n} B"
    units = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
    power = min(len(units), (abs(n).bit_length() - 1) // 10)
    return f"{number(n / 1024**power)} {units[power - 1]}"


def seconds(x: float) -> str:
    """Return a duration in s, ms or µs."""
    if x == 0 or x >= 1:
        return f"{number(x)} s"
    return f"{number(1e3 * x)} ms" if x >= 1e-3 else f"{number(1e6 * x)} µs"


def shape(sizes: Sequence[int]) -> str:
    """Return a shape as torch writes it."""
    return f"[{', '.join(map(str, sizes))}]"


def plural(n: int, noun: str, many: str | None = None) -> str:
    """``1 call``, ``2 calls``."""
    return f"{count(n)} {noun if n == 1 else many or noun + 's'}"


def duration(x: float) -> str:
    """Return a duration for people: from two minutes on in minutes, hours and days."""
    if not 120 <= x < math.inf:
        return seconds(x)
    minutes, rest = divmod(round(x), 60)
    hours, days = minutes // 60, minutes // 1440
    parts = [(minutes, "min"), (rest, "s")]
    if hours >= 2:
        parts = [(hours, "h"), (minutes % 60, "min")]
    if days >= 2:
        parts = [(days, "d"), (hours % 24, "h")]
    return " ".join(f"{count(n)} {unit}" for n, unit in parts if n)


def figure_words(figures: Mapping[str, object]) -> list[str]:
    """``knn_accuracy: 0.99`` as ``k-NN accuracy 0.9900``, one for each figure."""
    return [
        f"{name.replace('_', ' ').replace('knn', 'k-NN')} {_shown(value)}"
        for name, value in figures.items()
    ]


def _shown(value: object) -> str:
    if isinstance(value, int):
        return count(value)
    return number(value) if isinstance(value, float) else str(value)
