"""The processes of one step."""

from __future__ import annotations

from dataclasses import dataclass, field

from gradscope.records.fields import renamed
from gradscope.records.placements import DeviceMesh, ParameterPlacement


@dataclass(frozen=True, slots=True)
class ParallelRun:
    """The processes of a run, and what each has of the model.

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
