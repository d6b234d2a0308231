"""Records of the processes of a run, and of the placement of its parameters."""

from __future__ import annotations

from dataclasses import dataclass, field

from gradscope.records.data import renamed

#: A group of ``ParameterPlacement``, with the norm of its gradients here as backward left them, and
#: as the optimizer got them.
GroupNorm = tuple[int, float | None, float | None]


@dataclass(frozen=True, slots=True)
class DeviceMesh:
    """The processes that share tensors, as a grid.

    Attributes:
        id: its number in the file of one process.
        names: the names of its dimensions; empty if the script gave none.
        shape: the number of processes along each.
        ranks: the ranks of the processes, row by row.
        coordinate: the position of this process.
    """

    id: int
    names: tuple[str, ...]
    shape: tuple[int, ...]
    ranks: tuple[int, ...]
    coordinate: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ParameterPlacement:
    """The placement of a parameter in one process of several.

    Attributes:
        model: the id of its model.
        name: its name.
        shape: the shape of the full tensor.
        local_shape: the shape of this process's part.
        mesh: the id of its ``DeviceMesh``; None for a plain tensor, which is not sharded.
        placements: for each dimension of the mesh "S(d)", sharded along dimension d of the
            tensor, "R", replicated, or "P", a partial sum. "F" alone is a flat shard of
            FullyShardedDataParallel.
        gradient_placements: the same for its gradient.
        norm_group: the group of an optimizer's parameters with equal placement; the step
            metrics have one norm per group. None if no optimizer holds it.
    """

    model: int
    name: str
    shape: tuple[int, ...]
    local_shape: tuple[int, ...]
    mesh: int | None = None
    placements: tuple[str, ...] = ()
    gradient_placements: tuple[str, ...] = ()
    norm_group: int | None = None


@dataclass(frozen=True, slots=True)
class ParallelRun:
    """The processes of a run, and each one's part of the model.

    Attributes:
        kind: ddp, fsdp, tp, or "fsdp x tp".
        processes: the number of processes.
        axes: the dimensions of the mesh, each with its number of processes.
        parts: the number of parts of each batch.
        rank: the process whose calls are recorded.
        meshes, placements: those of the parameters in that process.
        not_reduced: parameters without a global norm: replicas differ, or hold partial sums.
    """

    kind: str
    processes: int
    axes: dict[str, int]
    parts: int
    rank: int = 0
    meshes: tuple[DeviceMesh, ...] = ()
    placements: tuple[ParameterPlacement, ...] = ()
    not_reduced: tuple[str, ...] = field(default=(), metadata=renamed("untold", sparse=True))
