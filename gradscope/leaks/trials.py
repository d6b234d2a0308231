"""Two small runs that show a leak, and the comparison of their results.

The time dimension of an inner tensor is unknown. So an element may differ if any dimension of a
matching size places it among the changed positions; for scores [query, key] both dimensions count.
An element that differs without such an excuse carries a leak. Example: a softmax over all keys
changes the weights of past queries on past keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import reduce
from itertools import combinations, product
from operator import or_
from typing import TYPE_CHECKING, Any

import torch

from gradscope.leaks.changes import Change, Kept, Layout, Outputs, change
from gradscope.leaks.forwards import Forwards

if TYPE_CHECKING:
    from gradscope.leaks.subject import Subject


def excused(shape: Sequence[int], dirty: torch.Tensor, slack: int = 0) -> list[torch.Tensor]:
    """Return bool masks of the elements that may differ, one per possible time dimension.

    Args:
        shape: the tensor's shape.
        dirty: bool over the axis, the changed entries.
        slack: a dimension may be shorter than the axis by this number of entries, as after
            slicing; above 0 it may also be longer, as after padding.
    """
    fixed = torch.zeros(tuple(shape), dtype=torch.bool)
    readings: list[list[torch.Tensor]] = []
    length = dirty.numel()
    blocked: set[int] = set()
    for one, other in combinations(range(len(shape)), 2):
        if shape[one] * shape[other] == length and min(shape[one], shape[other]) > 1:
            # The axis in blocks: the block's number and the place in it.
            fixed |= _placed(dirty.reshape(shape[one], shape[other]), shape, one, other)
            blocked.update((one, other))
    exact = bool(blocked) or length in shape  # then a near fit is one by chance
    for dim, size in enumerate(shape):
        if dim not in blocked and (not exact or size % max(length, 1) == 0):
            ways = [_placed(way, shape, dim) for way in readings_of(size, dirty, slack)]
            if len(ways) == 1:
                fixed |= ways[0]
            elif ways:
                readings.append(ways)
    return [reduce(or_, chosen, fixed) for chosen in product(*readings[:3])]


def _placed(labels: torch.Tensor, shape: Sequence[int], *dims: int) -> torch.Tensor:
    view = [1] * len(shape)
    for dim in dims:
        view[dim] = shape[dim]
    return labels.reshape(view)


def readings_of(size: int, dirty: torch.Tensor, slack: int = 0) -> list[torch.Tensor]:
    """Return the entries of a dimension of that size that may belong to the changed positions."""
    length = dirty.numel()
    if size == length:
        return [dirty]
    if size < 2 or length < 2:
        return []
    if size % length == 0:  # several entries side by side, or the axis several times
        times = size // length
        return [dirty.repeat(times), dirty.repeat_interleave(times)]
    if length % size == 0:  # blocks
        return [dirty.reshape(size, -1).any(1)]
    if slack and size - length >= -min(slack, length // 3):
        found = torch.zeros(size, dtype=torch.bool)
        for offset in range(max(0, length - size) + 1):
            place = torch.arange(size) + offset
            inside = place < length
            found |= inside & dirty[place.clamp(0, length - 1)]
            if bool(dirty[-1]):  # beyond the end is later than all
                found |= place >= length
        return [found]
    if size > length and not slack:  # something is before it, or behind it
        other = torch.zeros(size - length, dtype=torch.bool)
        return [torch.cat([other, dirty]), torch.cat([dirty, other])]
    return []


Tensors = Mapping[str, torch.Tensor]
Around = Callable[[], AbstractContextManager[Any]]
#: A run under observation, which gives the outputs.
Run = Callable[[Forwards, Around], Outputs]
#: The base's result and the other's, of one shape; of the second a view.
Pairing = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
#: If two runs differ in shape or order, a smaller share of the spread is rounding.
ROUNDING = 1e-5


def as_they_are(before: torch.Tensor, now: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Pair results as they are: both runs have the same shapes."""
    return before, now


def cropped(long: int, short: int, side: str) -> Pairing:
    """Pair results if the base has ``short`` entries along an axis, and the other ``long``, padded
    on a side."""
    start = long - short if side == "left" else 0

    def pair(before: torch.Tensor, now: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if now.dim() == before.dim():
            for dim in range(now.dim()):
                if (now.size(dim), before.size(dim)) == (long, short):
                    now = now.narrow(dim, start, short)
        return before, now

    return pair


def last_of(length: int) -> Pairing:
    """Pair results if the base has ``length`` entries or more along an axis, and the other the last
    of them."""

    def pair(before: torch.Tensor, now: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if now.dim() == before.dim():
            for dim in range(now.dim()):
                own, whole = now.size(dim), before.size(dim)
                if own < whole and whole >= length:
                    before = before.narrow(dim, whole - own, own)
        return before, now

    return pair


def moved(places: torch.Tensor) -> Pairing:
    """Pair results if the other has the base's entries along an axis in this order, or no order."""

    def pair(before: torch.Tensor, now: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if now.shape != before.shape:
            return before, now
        best, gap = before, _gap(before, now)
        for dim in range(now.dim()):
            if now.size(dim) == places.numel():
                other = before.index_select(dim, places.to(before.device))
                if (own := _gap(other, now)) < gap:
                    best, gap = other, own
        return best, now

    return pair


def _gap(one: torch.Tensor, other: torch.Tensor) -> float:
    if not one.numel() or one.dtype != other.dtype:
        return 0.0
    gap = (one.to(torch.float64) - other.detach().to(torch.float64)).abs()
    return float(gap.nan_to_num(0.0).max())


@dataclass(frozen=True, slots=True)
class Trial:
    """Two small runs that show the leak.

    Attributes:
        base, changed: the batches, or functions that run them.
        layout: the layout of their outputs.
        kept: the positions that must not change.
        dirty: bool over the changed axis, the changed entries; empty: nothing may differ.
        slack: as for ``excused``.
        pairing: makes two results comparable.
        exact: True if equal means equal bits; otherwise rounding is ignored.
        restores: True if the unchanged result, put in its place, must undo the leak; otherwise
            it must change it.
        beside: a batch in which everything visible is changed: a result that does not differ in
            it has no part in the prediction.
        proves: True if the outputs show the leak, so that a candidate can be tested.
        passes: functions that are not candidates.
    """

    base: Tensors | Run
    changed: Tensors | Run
    layout: Layout
    kept: Kept
    dirty: torch.Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.bool))
    slack: int = 0
    pairing: Pairing = as_they_are
    exact: bool = True
    restores: bool = False
    beside: Tensors | None = None
    proves: bool = True
    passes: frozenset[str] = frozenset()

    @classmethod
    def of(
        cls,
        subject: Subject,
        base: Tensors,
        changed: Tensors,
        kept: Kept,
        dirty: torch.Tensor,
        count: int,
        slack: int = 0,
        passes: frozenset[str] = frozenset(),
    ) -> Trial:
        """Return a trial with the outputs' layout for so many rows."""
        layout = Layout.of(subject.meaning, count)
        return cls(base, changed, layout, kept, dirty, slack, passes=passes)

    def gap(self, one: Outputs, other: Outputs) -> Change | None:
        """Return the forbidden change between two runs' outputs."""
        if not self.exact:
            paired = {
                path: self.pairing(t, other[path]) for path, t in one.items() if path in other
            }
            one = {path: pair[0] for path, pair in paired.items()}
            other = {path: pair[1] for path, pair in paired.items()}
        return change(one, other, self.layout, self.kept)
