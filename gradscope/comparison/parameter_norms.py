"""The parameter whose gradient is most different in two runs at one step."""

from __future__ import annotations

from gradscope.records.norms import NormSeries, number_or_none
from gradscope.runfile.reader import RunFile


def largest_difference(a: RunFile, b: RunFile, step: int, limit: float) -> str:
    """``the gradient of `fc.weight` is furthest off: 0.5 in A, 0.7 in B``; "" where none is.

    Args:
        a: the run that is compared with.
        b: the one that is compared with it.
        step: at which both may have read their gradients.
        limit: the relative error from which on two norms differ.
    """
    theirs = b.norm_series()
    found: list[tuple[float, str, float, float]] = []
    for key, one in a.norm_series().items():
        ours, other = _at(one, step), _at(theirs.get(key, NormSeries()), step)
        if ours is None or other is None or ours == other:
            continue
        error = abs(other - ours) / (ours or other)
        if error > limit:
            found.append((error, key[1], ours, other))
    if not found:
        return ""
    error, name, ours, other = max(found)
    return f"the gradient of `{name}` is furthest off: {ours:.4g} in A, {other:.4g} in B"


def _at(norms: NormSeries, step: int) -> float | None:
    if step not in norms.steps:
        return None
    return number_or_none(norms.gradient[norms.steps.index(step)])
