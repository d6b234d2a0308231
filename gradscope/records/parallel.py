"""The processes of a run, and where its parameters are: replicated, or in shards."""

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
        names: of its dimensions; none where the script gave none.
        shape: how many processes there are along each.
        ranks: of the processes, row by row.
        coordinate: the place of this process.
    """

    id: int
    names: tuple[str, ...]
    shape: tuple[int, ...]
    ranks: tuple[int, ...]
    coordinate: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ParameterPlacement:
    """A parameter as one process of several has it.

    Attributes:
        model: the id of its model.
        name: its own.
        shape: of the full tensor.
        local_shape: of what this process has of it.
        mesh: the id of its ``DeviceMesh``; None for a plain tensor, which is not sharded.
        placements: for each dimension of the mesh "S(d)", sharded along dimension d of the tensor,
            "R", the same in all, or "P", a sum that is still to be taken. "F" alone is a flat piece
            of FullyShardedDataParallel.
        gradient_placements: the same of its gradient.
        norm_group: the parameters of one optimizer that are placed alike: the step metrics have one
            norm for each such group. None where no optimizer has it.
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
        processes: how many there were.
        axes: the dimensions of the mesh, each with its number of processes.
        parts: into how many parts each batch was split.
        rank: the process whose calls are recorded.
        meshes, placements: of the parameters, as that process has them.
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
