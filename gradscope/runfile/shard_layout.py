"""Knows the shards of each parameter on the ranks, and computes the global norm from their norms.

The global L2 norm is the root of the sum of squares over the distinct shards. Replicas count once
and must agree; if they differ, there is no global norm.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gradscope.records.run import DeviceMesh, ParameterPlacement

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
        replicas differ, or if the tensor has no norm.
        """
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
        placements: of each rank.
        meshes: of each rank.
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
