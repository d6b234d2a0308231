"""How one step was spread over several processes."""

from __future__ import annotations

from dataclasses import dataclass, field

from gradscope.records.fields import SPARSE
from gradscope.records.placements import DeviceMesh, ParameterPlacement


@dataclass(frozen=True, slots=True)
class ParallelRun:
    """The processes of a run, and what each has of the model.

    Attributes:
        kind: ddp, fsdp, tp, or "fsdp x tp".
        processes: how many there were.
        axes: the dimensions of the mesh, each with its number of processes.
        parts: how many parts each batch was cut into.
        rank: of the process that the calls are of.
        meshes, placements: of the parameters, as that process has them.
        untold: parameters that have no norms, as replicas differ, or as nobody took the sum.
    """

    kind: str
    processes: int
    axes: dict[str, int]
    parts: int
    rank: int = 0
    meshes: tuple[DeviceMesh, ...] = ()
    placements: tuple[ParameterPlacement, ...] = ()
    untold: tuple[str, ...] = field(default=(), metadata=SPARSE)
