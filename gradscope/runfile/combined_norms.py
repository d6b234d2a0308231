"""The norms of parameters over many steps, reduced over ranks."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence

from gradscope.records.norms import NONE, NormSeries
from gradscope.runfile.layout import Key, Layout, ShardLayout

_Columns = Mapping[int, Sequence[float]]


def combined_norms(
    series: Mapping[int, Mapping[Key, NormSeries]], layout: Layout
) -> dict[Key, NormSeries]:
    """The global norms at the steps that every rank with a part read.

    Args:
        series: of each rank, of what it holds.
        layout: of the same ranks.
    """
    holders: dict[Key, dict[int, NormSeries]] = {}
    for rank in sorted(series):
        for key, one in series[rank].items():
            holders.setdefault(key, {})[rank] = one
    shared = _Shared()
    found = {}
    for key, held in holders.items():
        ranks = tuple(held)
        steps = shared.steps([one.steps for one in held.values()])
        value_steps = shared.steps([one.value_steps for one in held.values()])
        parts = {rank: shared.at(steps, one.steps) for rank, one in held.items()}
        values = {rank: shared.at(value_steps, one.value_steps) for rank, one in held.items()}
        gradient = layout.gradient(key, ranks)
        before = {rank: _taken(one.gradient, parts[rank]) for rank, one in held.items()}
        own = {rank: _taken(one.value, values[rank]) for rank, one in held.items()}
        reduced = clipped = _reduced_norm(gradient, before, len(steps))
        if any(one.clipped is not one.gradient for one in held.values()):
            after = {rank: _taken(one.clipped, parts[rank]) for rank, one in held.items()}
            clipped = _reduced_norm(gradient, after, len(steps))
        found[key] = NormSeries(
            steps,
            reduced,
            clipped,
            value_steps,
            _reduced_norm(layout.value(key, ranks), own, len(value_steps)),
        )
    return found


class _Shared:
    """Steps that several ranks have: nearly always the same of all parameters."""

    def __init__(self) -> None:
        self._steps: dict[tuple[int, ...], array[int]] = {}
        self._places: dict[tuple[int, int], list[int] | None] = {}

    def steps(self, several: Sequence[array[int]]) -> array[int]:
        """Those that are in all."""
        key = tuple(map(id, several))
        found = self._steps.get(key)
        if found is None:
            first, *others = several
            if any(other != first for other in others):
                common = set(first).intersection(*others)
                first = array("q", sorted(common))
            found = self._steps[key] = first
        return found

    def at(self, steps: array[int], own: array[int]) -> list[int] | None:
        """Where a rank has these steps; None where it has no others."""
        key = id(steps), id(own)
        if key not in self._places:
            places = {step: i for i, step in enumerate(own)} if steps != own else None
            self._places[key] = None if places is None else [places[step] for step in steps]
        return self._places[key]


def _taken(norms: array[float], places: list[int] | None) -> Sequence[float]:
    return norms if places is None else [norms[i] for i in places]


def _reduced_norm(reduced: ShardLayout, columns: _Columns, length: int) -> array[float]:
    """The global norm at each step, from those of its shards."""
    if reduced.fault is not None:
        return array("d", [NONE]) * length
    copies = [_of_copy(copy, columns) for copy in reduced.copies]
    if copies and all(one is not None and one == copies[0] for one in copies):
        return array("d", copies[0] or ())
    found = array("d")
    for i in range(length):
        own = {rank: column[i] for rank, column in columns.items()}
        norm = reduced.norm({rank: None if x == NONE else x for rank, x in own.items()})
        found.append(NONE if norm is None else norm)
    return found


def _of_copy(copy: Sequence[Sequence[int]], columns: _Columns) -> list[float] | None:
    """The norm of one replica at each step; None where some are missing or differ."""
    total: list[float] = []
    if not copy:  # no shard of it has an element
        return None
    for ranks in copy:
        several = [columns[rank] for rank in ranks if rank in columns]
        if not several or any(one != several[0] for one in several) or NONE in several[0]:
            return None
        total = list(map(math.hypot, total, several[0])) if total else list(several[0])
    return total
