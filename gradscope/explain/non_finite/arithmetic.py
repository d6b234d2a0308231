"""The reason of any operation: by its elements, by its rows or sums, or by what it was given."""

from __future__ import annotations

from dataclasses import replace

from gradscope.explain.non_finite.elements import element
from gradscope.explain.non_finite.levels import broken
from gradscope.explain.non_finite.reasons import NonFiniteResult, Reason
from gradscope.explain.non_finite.reductions import anything, reduction


def reason_of(result: NonFiniteResult) -> Reason:
    """What went wrong; at the least the name of the operation."""
    try:
        reason = reduction(result)
        if reason is None and result.pointwise:
            reason = element(result)
        reason = reason or anything(result)
        if reason.count is not None:
            return reason
        return replace(reason, count=int(broken(result.out, result.kind).sum()))
    except (RuntimeError, NotImplementedError, TypeError, IndexError):
        return Reason(result.name)  # a kind of tensor that does not let its values be read
