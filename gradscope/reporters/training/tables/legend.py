"""What the curves of a table mean."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gradscope.records.history import RunHistory
from gradscope.typeset.curves import NOT_FINITE
from gradscope.typeset.numbers import count

_HEIGHTS = (
    "from each row's lowest value to its highest; by the logarithm where these are more than 100 "
    "times apart"
)


def curve_legend(curves: Sequence[str], over: str, *, explained: bool = False) -> Iterator[str]:
    """What the curves go over, their heights, and the signs that occur.

    ``explained`` is that a table above has told of heights.
    """
    if over and any(one.strip() for one in curves):
        yield f"curves: {over}" + ("" if explained else f", {_HEIGHTS}")
    if any(NOT_FINITE in one for one in curves):
        yield f"{NOT_FINITE}: NaN or infinite; nonfinite: the steps with one, and the first of them"


def losses(steps: Sequence[int]) -> str:
    """How many of the steps were not finite, and the first: ``1 at 89``, ``3 from 89``."""
    if not steps:
        return ""
    return f"{count(len(steps))} {'at' if len(steps) == 1 else 'from'} {count(steps[0])}"


def span(history: RunHistory) -> tuple[int, int]:
    """The first and the last step that is known of."""
    if history.steps:
        return history.steps[0].step, history.steps[-1].step
    return (history.sampled[0], history.sampled[-1]) if history.sampled else (1, 1)
