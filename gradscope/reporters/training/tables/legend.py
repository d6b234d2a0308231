"""The legend of the curves of a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gradscope.records.history import RunHistory
from gradscope.typeset.curves import NOT_FINITE
from gradscope.typeset.numbers import count

_HEIGHTS = (
    "from each row's lowest value to its highest; log scale if the highest is over 100 times the "
    "lowest"
)


def curve_legend(curves: Sequence[str], over: str, *, explained: bool = False) -> Iterator[str]:
    """What the curves go over, their heights, and the symbols that occur.

    ``explained``: the legend of a table above explains the heights.
    """
    if over and any(one.strip() for one in curves):
        yield f"curves: {over}" + ("" if explained else f", {_HEIGHTS}")
    if any(NOT_FINITE in one for one in curves):
        yield f"{NOT_FINITE}: NaN or Inf; nonfinite: the number of steps with one, and the first"


def losses(steps: Sequence[int]) -> str:
    """How many of the steps were NaN or Inf, and the first: ``1 at 89``, ``3 from 89``."""
    if not steps:
        return ""
    return f"{count(len(steps))} {'at' if len(steps) == 1 else 'from'} {count(steps[0])}"


def span(history: RunHistory) -> tuple[int, int]:
    """The first and the last known step."""
    if history.steps:
        return history.steps[0].step, history.steps[-1].step
    return (history.sampled[0], history.sampled[-1]) if history.sampled else (1, 1)
