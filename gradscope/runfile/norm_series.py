"""Norms of parameters over steps, and the global norm from the norms of shards on the ranks.

The global L2 norm is the root of the sum of squares over the distinct shards. Replicas count once
and must agree; if they differ, there is no global norm.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gradscope.errors import ConfigError
from gradscope.records.run import DeviceMesh, ParameterPlacement
from gradscope.records.tensors import NONE, NormNames, NormSeries, unpacked
from gradscope.runfile import schema

#: A parameter: the id of its model, and its name.
Key = tuple[int, str]
#: Tolerance between the norms of replicas, as a share.
_ALIKE = 1e-6


@dataclass(frozen=True, slots=True)
class ShardLayout:
    """Composition of a tensor from the shards on ranks.

    Attributes:
        copies: each replica, as its distinct shards, and for each shard the ranks that hold it.
            Shards without elements and replicas with a missing shard are left out.
        elements: the number of elements on each rank.
        fault: why there is no global norm, if that is certain: "flat", "partial" or "missing".
    """

    copies: tuple[tuple[tuple[int, ...], ...], ...]
    elements: Mapping[int, int] = field(default_factory=dict)
    fault: str | None = None

    def norm(self, norms: Mapping[int, float | None]) -> float | None:
        """Return the global norm from the ranks' norms; None if a shard's norm is missing, if
        replicas differ, or if the tensor has no norm."""
        if self.fault is not None:
            return None
        found = []
        for copy in self.copies:
            shards = [_agreed([norms.get(rank) for rank in ranks]) for ranks in copy]
            present = [norm for norm in shards if norm is not None]
            if len(present) == len(shards):
                found.append(math.hypot(*present))
        return _agreed(found)

    def agreed(self, values: Mapping[int, float | None]) -> float | None:
        """Return the value on which all ranks with the tensor agree; None if it is sharded."""
        if self.fault is not None or any(len(copy) > 1 for copy in self.copies):
            return None
        return _agreed([values.get(rank) for copy in self.copies for part in copy for rank in part])

    @property
    def ranks(self) -> tuple[int, ...]:
        """One rank for each shard of the first copy."""
        return tuple(ranks[0] for ranks in self.copies[0]) if self.copies else ()


def _agreed(values: Sequence[float | None]) -> float | None:
    """Return the number on which all ranks with a value agree; None without one."""
    known = [value for value in values if value is not None]
    if not known or any(abs(value - known[0]) > _ALIKE * abs(known[0]) for value in known):
        return None
    return known[0]


@dataclass(frozen=True, slots=True)
class Holder:
    """One rank's part of a tensor: its mesh, the placements there, the number of elements."""

    mesh: DeviceMesh | None = None
    placements: tuple[str, ...] = ()
    elements: int = 1


def reduced(holders: Mapping[int, Holder]) -> ShardLayout:
    """Return the layout of the shards that the ranks hold."""
    meshes: dict[tuple[int, ...], dict[tuple[int, ...], list[int]]] = {}
    needed: dict[tuple[int, ...], int] = {}
    partial = False
    for rank, holder in sorted(holders.items()):
        mesh = holder.mesh
        if mesh is None:
            meshes[rank,], needed[rank,] = {(): [rank]}, 1
            continue
        partial = partial or any(kind.startswith("P") for kind in holder.placements)
        sharded = [i for i, kind in enumerate(holder.placements) if kind.startswith("S")]
        place = tuple(mesh.coordinate[i] for i in sharded)
        meshes.setdefault(mesh.ranks, {}).setdefault(place, []).append(rank)
        needed[mesh.ranks] = math.prod(mesh.shape[i] for i in sharded)
    copies = tuple(
        tuple(tuple(ranks) for ranks in shards.values() if holders[ranks[0]].elements)
        for ranks, shards in meshes.items()
        if len(shards) == needed[ranks]
    )
    elements = {rank: holder.elements for rank, holder in holders.items()}
    fault = "partial" if partial else None if copies else "missing"
    if any("F" in holder.placements for holder in holders.values()):
        fault = "flat"
    return ShardLayout(copies, elements, fault)


class Layout:
    """The placements that all ranks wrote.

    Args:
        placements: the placements of each rank.
        meshes: the meshes of each rank.
    """

    def __init__(
        self,
        placements: Mapping[int, Sequence[ParameterPlacement]],
        meshes: Mapping[int, Sequence[DeviceMesh]],
    ) -> None:
        self.ranks = tuple(sorted(placements))
        self._meshes = {rank: {m.id: m for m in several} for rank, several in meshes.items()}
        self._of: dict[Key, dict[int, ParameterPlacement]] = {}
        for rank in self.ranks:
            for one in placements[rank]:
                self._of.setdefault((one.model, one.name), {})[rank] = one
        self._groups: tuple[NormGroup, ...] | None = None

    def shape(self, parameter: Key) -> tuple[int, ...] | None:
        """Return the shape of the full parameter; None if no rank knows it."""
        return next((one.shape for one in self._of.get(parameter, {}).values()), None)

    def value(self, parameter: Key, ranks: Sequence[int] = ()) -> ShardLayout:
        """Return the layout of its value; of ``ranks`` that hold it if its placement is unknown."""
        return self._combined(parameter, ranks, gradient=False)

    def gradient(self, parameter: Key, ranks: Sequence[int] = ()) -> ShardLayout:
        """Return the layout of its gradient, which may have another placement."""
        return self._combined(parameter, ranks, gradient=True)

    def _combined(self, parameter: Key, ranks: Sequence[int], *, gradient: bool) -> ShardLayout:
        placed = self._of.get(parameter)
        if not placed:
            return reduced({rank: Holder() for rank in ranks})
        return reduced({rank: self._holder(rank, one, gradient) for rank, one in placed.items()})

    def _holder(self, rank: int, one: ParameterPlacement, gradient: bool) -> Holder:
        mesh = None if one.mesh is None else self._meshes[rank].get(one.mesh)
        kinds = one.gradient_placements if gradient else one.placements
        return Holder(mesh, kinds, math.prod(one.local_shape))

    @property
    def partial(self) -> tuple[Key, ...]:
        """Return the parameters whose value or gradient is a partial sum on each rank."""
        return tuple(
            key
            for key, placed in self._of.items()
            if any(
                kind.startswith("P")
                for one in placed.values()
                for kind in (*one.placements, *one.gradient_placements)
            )
        )

    @property
    def groups(self) -> tuple[NormGroup, ...]:
        """Return the groups of parameters whose norms are in the step metrics."""
        if self._groups is None:
            self._groups = tuple(self._found_groups())
        return self._groups

    def _found_groups(self) -> list[NormGroup]:
        members: dict[tuple[int, int], list[tuple[Key, ParameterPlacement]]] = {}
        for key, placed in self._of.items():
            for rank, one in placed.items():
                if one.norm_group is not None:
                    members.setdefault((rank, one.norm_group), []).append((key, one))
        together: dict[frozenset[Key], dict[int, tuple[int, Holder]]] = {}
        for (rank, number), several in members.items():
            names = frozenset(key for key, _ in several)
            holder = self._holder(rank, several[0][1], gradient=True)
            full = Holder(holder.mesh, holder.placements)
            together.setdefault(names, {})[rank] = number, full
        counted = sum(map(len, together))
        overlap = counted > len(frozenset[Key]().union(*together))
        found = []
        for held in together.values():
            made = reduced({rank: holder for rank, (_, holder) in held.items()})
            made = ShardLayout((), {}, "missing") if overlap else made
            found.append(NormGroup({rank: number for rank, (number, _) in held.items()}, made))
        return found


@dataclass(frozen=True, slots=True)
class NormGroup:
    """Parameters of one optimizer that are placed alike: its number at each rank that has them."""

    numbers: Mapping[int, int]
    reduced: ShardLayout


COLUMNS = ("names", "step", "gradient", "clipped", "value")
_TYPES: tuple[set[Any], ...] = ({int}, {int}, *([{bytes, type(None)}] * 3))


def norm_series(
    names: Sequence[NormNames], found: Sequence[schema.Row], file: str
) -> dict[Key, NormSeries]:
    """Return series by model id and parameter name, in the order of their models.

    Args:
        names: the lists of names that the rows refer to.
        found: rows of ``COLUMNS``, in the order in which they were written.
        file: the file that they come from.

    Raises:
        ConfigError: the rows are damaged.
    """
    schema.check_columns(found, COLUMNS, _TYPES, file)
    of_names: dict[int, list[schema.Row]] = {}
    for row in found:
        of_names.setdefault(row[0], []).append(row[1:])
    series: dict[Key, NormSeries] = {}
    for one in names:
        try:
            each = _of_one(of_names.get(one.id, []), len(one.names))
        except ValueError as error:
            raise ConfigError(f"`{file}` is damaged: {error}") from None
        for name, norms in zip(one.names, each, strict=True):
            key = one.model, name
            series[key] = joined(series[key], norms) if key in series else norms
    return series


def _of_one(found: Sequence[schema.Row], count: int) -> list[NormSeries]:
    """Yield the series of each parameter in one list of names."""
    steps = array("q", [row[0] for row in found])
    before = [row[1] for row in found]
    # If there is no norm after clipping, the norm before it counts.
    after = [row[1] if row[2] is None else row[2] for row in found]
    gradient = _columns(before, count)
    clipped = _columns(after, count) if after != before else gradient
    valued = [(row[0], row[3]) for row in found if row[3] is not None]
    value_steps = array("q", [step for step, _ in valued])
    value = _columns([blob for _, blob in valued], count)
    return [NormSeries(steps, gradient[i], clipped[i], value_steps, value[i]) for i in range(count)]


def _columns(blobs: Sequence[bytes | None], count: int) -> list[array[float]]:
    """Return the norms of each parameter, from the norms of each step."""
    if all(blob is not None and len(blob) == 4 * count for blob in blobs):
        every = unpacked(b"".join(blob or b"" for blob in blobs), count * len(blobs))
    else:
        every = array("d")
        for blob in blobs:
            every.extend([NONE] * count if blob is None else list(unpacked(blob, count)))
    return [every[i::count] for i in range(count)]


def joined(one: NormSeries, other: NormSeries) -> NormSeries:
    """Return both series as one, by step; if both have a step, the second's norms win.

    A parameter has several series if its optimizer's parameters changed, or if two optimizers hold
    it.
    """
    if not other.steps:
        return one
    if not one.steps or one.steps[-1] < other.steps[0]:
        return NormSeries(
            one.steps + other.steps,
            _end_to_end(one.gradient, other.gradient),
            _end_to_end(one.clipped, other.clipped),
            one.value_steps + other.value_steps,
            _end_to_end(one.value, other.value),
        )
    steps, (gradient, clipped) = _sorted(
        (one.steps, (one.gradient, one.clipped)), (other.steps, (other.gradient, other.clipped))
    )
    value_steps, (value,) = _sorted(
        (one.value_steps, (one.value,)), (other.value_steps, (other.value,))
    )
    return NormSeries(steps, gradient, clipped, value_steps, value)


def _end_to_end(one: array[float], other: array[float]) -> array[float]:
    return one + other if one.typecode == other.typecode else array("d", [*one, *other])


def _sorted(
    *parts: tuple[array[int], Sequence[array[float]]],
) -> tuple[array[int], list[array[float]]]:
    found: dict[int, tuple[float, ...]] = {}
    for steps, columns in parts:
        found.update(zip(steps, zip(*columns, strict=True), strict=True))
    steps = array("q", sorted(found))
    width = len(parts[0][1])
    return steps, [array("d", [found[step][i] for step in steps]) for i in range(width)]


def combined_later(
    before: Mapping[Key, NormSeries], later: Mapping[Key, NormSeries]
) -> dict[Key, NormSeries]:
    """Return the norms that were read earlier, with the norms of the steps since."""
    found = dict(before)
    steps: dict[tuple[int, int], array[int]] = {}  # the same of many parameters
    for key, one in later.items():
        known = found.get(key)
        if known is None or not one.steps:
            found[key] = known or one
            continue
        both = joined(known, one)
        ours = id(known.steps), id(one.steps)
        values = id(known.value_steps), id(one.value_steps)
        found[key] = replace(
            both,
            steps=steps.setdefault(ours, both.steps),
            value_steps=steps.setdefault(values, both.value_steps),
        )
    return found


_Columns = Mapping[int, Sequence[float]]


def combined_norms(
    series: Mapping[int, Mapping[Key, NormSeries]], layout: Layout
) -> dict[Key, NormSeries]:
    """Return global norms, at the steps where every rank with a part of the tensor read it.

    Args:
        series: for each rank, the norms of its parts.
        layout: the layout of the same ranks.
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
    """The steps that several ranks have; they are nearly always the same for all parameters."""

    def __init__(self) -> None:
        self._steps: dict[tuple[int, ...], array[int]] = {}
        self._places: dict[tuple[int, int], list[int] | None] = {}

    def steps(self, several: Sequence[array[int]]) -> array[int]:
        """Return the steps that are in all."""
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
        """Return the positions of these steps in a rank's own; None if both are equal."""
        key = id(steps), id(own)
        if key not in self._places:
            places = {step: i for i, step in enumerate(own)} if steps != own else None
            self._places[key] = None if places is None else [places[step] for step in steps]
        return self._places[key]


def _taken(norms: array[float], places: list[int] | None) -> Sequence[float]:
    return norms if places is None else [norms[i] for i in places]


def _reduced_norm(reduced: ShardLayout, columns: _Columns, length: int) -> array[float]:
    """Return the global norm at each step, from the norms of its shards."""
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
    """Return the norm of one replica at each step; None if some are missing or differ."""
    total: list[float] = []
    if not copy:  # no shard of it has an element
        return None
    for ranks in copy:
        several = [columns[rank] for rank in ranks if rank in columns]
        if not several or any(one != several[0] for one in several) or NONE in several[0]:
            return None
        total = list(map(math.hypot, total, several[0])) if total else list(several[0])
    return total
