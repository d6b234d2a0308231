"""A dependency map as blocks of characters: outputs downwards, inputs to the right."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rich.text import Text

from gradscope.records.leaks import DependencyMap

#: From no dependency to the strongest.
SHADES = " ░▒▓█"
UNKNOWN = "?"


def map_lines(one: DependencyMap, width: int | None) -> Iterator[Text]:
    """The map with its title and its two axes."""
    title = f"{one.axis}: what each output (down) depends on (across), by {one.instrument}"
    yield Text(title, style="bold")
    for at, row in zip(one.outputs, one.values, strict=True):
        yield Text(f"{at:>5} │{''.join(shades(row))}│")
    step = max(1, len(one.inputs) // 4)
    marks = "".join(f"{at:<{step}}" if n % step == 0 else "" for n, at in enumerate(one.inputs))
    yield Text(f"{'':>6} {marks}")


def shades(row: tuple[float | None, ...]) -> Iterator[str]:
    """A character for each: orders of magnitude below the row's largest."""
    largest = max((value for value in row if value), default=0.0)
    for value in row:
        if value is None:
            yield UNKNOWN
        elif value <= 0:
            yield SHADES[0]
        else:
            below = -math.log10(value / largest)
            yield SHADES[max(1, 4 - int(below))]
