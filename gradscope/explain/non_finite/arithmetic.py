"""The reason of any operation: by its elements, by its rows or sums, or by what it was given."""

from __future__ import annotations

from gradscope.explain.non_finite.elements import element
from gradscope.explain.non_finite.reasons import Seen, Told
from gradscope.explain.non_finite.reductions import anything, fold


def words(seen: Seen) -> Told:
    """What went wrong; at the least the name of the operation."""
    try:
        told = fold(seen)
        if told is None and seen.pointwise:
            told = element(seen)
        return told or anything(seen)
    except (RuntimeError, NotImplementedError, TypeError, IndexError):
        return Told(seen.name)  # a kind of tensor that does not let its values be read
