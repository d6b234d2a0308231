"""Keeps the gradient norms of an optimizer's last steps in packed form; they are read only if a
rule needs them."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_low

from gradscope.records.tensors import NONE, ParameterNorms, unpacked
from gradscope.rules._window import KEPT

#: Number of lists of names with kept norms: an optimizer has one for each of its models.
_LISTS = 16


@dataclass(frozen=True, slots=True)
class Leap:
    """The parameter with the largest gradient in a step, and the median of its earlier norms."""

    name: str
    norm: float
    usual: float


class NormHistory:
    """The norms of the last steps. A step only stores a reference; ``largest`` reads the
    numbers."""

    __slots__ = ("_now", "_past")

    def __init__(self) -> None:
        self._now: Sequence[tuple[tuple[str, ...], ParameterNorms]] = ()
        self._past: dict[int, deque[ParameterNorms]] = {}

    def joined(self) -> bool:
        """Return True if a parameter has a gradient that had none at the last reading of norms."""
        for names, record in self._now:
            past = self._past.get(record.names)
            if not past:
                return bool(self._past)
            now, before = (one.clipped or one.gradient for one in (record, past[-1]))
            if now and before:
                pairs = zip(unpacked(now, len(names)), unpacked(before, len(names)), strict=True)
                if any(new != NONE and old == NONE for new, old in pairs):
                    return True
        return False

    def add(self, norms: Sequence[tuple[tuple[str, ...], ParameterNorms]]) -> None:
        """Add the norms of the next step, with their names; the earlier ones become history."""
        for _, record in self._now:
            past = self._past.pop(record.names, None)
            self._past[record.names] = past = deque(maxlen=KEPT) if past is None else past
            past.append(record)
            if len(self._past) > _LISTS:
                del self._past[next(iter(self._past))]
        self._now = norms

    def largest(self) -> Leap | None:
        """Return the largest gradient before clipping, if earlier steps have norms of it."""
        found: list[Leap] = []
        for names, record in self._now:
            if record.gradient is None:
                continue
            norms = unpacked(record.gradient, len(names))
            norm, i = max(((x, i) for i, x in enumerate(norms) if math.isfinite(x)), default=(0, 0))
            past = [one.gradient for one in self._past.get(record.names, ())]
            before = [unpacked(one, len(names))[i] for one in past if one is not None]
            known = [x for x in before if 0 <= x < math.inf]
            if norm > 0 and known:
                found.append(Leap(names[i], norm, median_low(known)))
        return max(found, key=lambda leap: leap.norm, default=None)
